"""Responses that are asked for again, or gone on from."""

import httpx
import pytest

from tests.server.responses.asking import ASK, PATH, answer, ask
from tests.server.responses.test_store import Time
from tests.server.scripted import scripted
from tests.server.serving import check_error

ALICE = {"authorization": "Bearer alice"}
BOB = {"authorization": "Bearer bob"}
ROOT = {"authorization": "Bearer root"}


async def test_the_second_turn_finds_the_first_in_the_cache() -> None:
    async with scripted("A store of answers.") as server:
        first = await answer(server, max_output_tokens=99)
        assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
        second = await answer(server, input="And then?", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        cached = second["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached == first["usage"]["total_tokens"] - 1, "all but the end of the answer, which was never computed"
        third = await answer(server, input="Really?", previous_response_id=second["id"])
        assert third["usage"]["input_tokens_details"]["cached_tokens"] >= second["usage"]["input_tokens"]
        stats = (await server.client.get("/cache/stats")).json()
        assert stats["hit_count"] == 2
        await server.settle()


async def test_instructions_are_not_carried_over() -> None:
    async with scripted("ok") as server:
        first = await answer(server, instructions="Be brief.")
        second = await answer(server, input="b", previous_response_id=first["id"])
        turns = [{"role": "user", "content": ASK["input"]}, {"role": "assistant", "content": "ok"}]
        same = await answer(server, input=[*turns, {"role": "user", "content": "b"}])
        assert second["usage"]["input_tokens"] == same["usage"]["input_tokens"]
        assert second["instructions"] is None


async def test_breakpoints_of_earlier_turns_stay() -> None:
    part = {"type": "input_text", "text": "A document.", "prompt_cache_breakpoint": {"mode": "explicit"}}
    options = {"prompt_cache_options": {"mode": "explicit"}}
    async with scripted("ok") as server:
        first = await answer(server, input=[{"role": "user", "content": [part]}], **options)
        second = await answer(server, input="And then?", previous_response_id=first["id"], **options)
        written = first["usage"]["input_tokens_details"]["cache_write_tokens"]
        assert written > 0
        assert second["usage"]["input_tokens_details"] == {"cached_tokens": written, "cache_write_tokens": 0}


async def test_it_can_be_had_again_and_forgotten() -> None:
    async with scripted("ok") as server:
        first = await answer(server)
        url = f"{PATH}/{first['id']}"
        found = await server.client.get(url)
        assert found.json() == first and found.headers["content-type"] == "application/json"
        assert (await server.client.get(url, params={"stream": "false"})).json() == first
        streamed = await server.client.get(url, params={"stream": "true"})
        check_error(streamed, 400, "unsupported_parameter", "stream")
        second = await answer(server, input="b", previous_response_id=first["id"])
        third = await answer(server, input="c", previous_response_id=second["id"])
        gone = await server.client.delete(url)
        assert gone.json() == {"id": first["id"], "object": "response", "deleted": True}
        for answered in (await server.client.get(url), await server.client.delete(url)):
            check_error(answered, 404, "response_not_found")
        again = await answer(server, input="c", previous_response_id=second["id"])
        assert again["usage"]["input_tokens"] == third["usage"]["input_tokens"], "it has its whole conversation"


def refused(response: httpx.Response) -> None:
    check_error(response, 404, "previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize("isolate", [True, False])
async def test_only_the_key_that_wrote_it_may_read_it(monkeypatch: pytest.MonkeyPatch, isolate: bool) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice,bob")
    monkeypatch.setenv("OPENAI_KV_ADMIN_KEY", "root")
    async with scripted("ok", auth__isolate_cache_by_key=isolate) as server:
        first = (await server.post(PATH, ASK, **ALICE)).json()
        goes_on = {**ASK, "previous_response_id": first["id"]}
        url = f"{PATH}/{first['id']}"
        for stranger in (BOB, ROOT):
            for path in (PATH, f"{PATH}/input_tokens"):
                refused(await server.post(path, goes_on, **stranger))
            check_error(await server.client.get(url, headers=stranger), 404, "response_not_found")
            check_error(await server.client.delete(url, headers=stranger), 404, "response_not_found")
        check_error(await server.client.get(url), 401, "invalid_api_key")
        assert (await server.post(PATH, goes_on, **ALICE)).status_code == 200
        assert (await server.client.get(url, headers=ALICE)).json() == first


async def test_one_that_never_was_or_was_not_to_be_stored() -> None:
    async with scripted("ok") as server:
        refused(await ask(server, previous_response_id="resp_0"))
        refused(await ask(server, previous_response_id="resp_0", stream=True))
        first = await answer(server, store=False)
        assert first["store"] is False
        refused(await ask(server, previous_response_id=first["id"]))
        assert len(server.context.responses) == 0


async def test_the_store_is_bounded() -> None:
    async with scripted("ok", server__max_stored_responses=2) as server:
        ids = [(await answer(server))["id"] for _ in range(3)]
        found = [(await server.client.get(f"{PATH}/{name}")).status_code for name in ids]
        assert found == [404, 200, 200]
    async with scripted("ok", server__max_stored_bytes=20_000) as server:
        ids = [(await answer(server, input=str(number) + "x" * 1500))["id"] for number in range(12)]
        found = [(await server.client.get(f"{PATH}/{name}")).status_code for name in ids]
        assert found == sorted(found, reverse=True) and found[0] == 404 and found[-1] == 200
        assert server.context.responses.num_bytes <= 20_000


async def test_it_ends_in_time() -> None:
    async with scripted("ok", server__response_ttl="90s") as server:
        time = Time()
        server.context.responses.clock = time
        first = await answer(server)
        time.now = 89
        assert (await ask(server, previous_response_id=first["id"])).status_code == 200
        time.now = 90
        refused(await ask(server, previous_response_id=first["id"]))


async def test_a_chain_counts_all_of_its_conversation() -> None:
    async with scripted("ok") as server:
        first = await answer(server, input="x" * 1000)
        one = server.context.responses.num_bytes
        await answer(server, previous_response_id=first["id"])
        assert server.context.responses.num_bytes > 2 * one > 2000
