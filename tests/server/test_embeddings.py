import asyncio
import json
from array import array
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import numpy as np
import openai
import pytest

from openai_kv.errors import InternalError
from openai_kv.outputs import RequestOutput
from openai_kv.server.embeddings import unit
from tests.fakes import fake_states
from tests.server.serving import Site, check_error, live_site, site
from tests.server.test_transport import aborted, connection
from tests.tiny_tokenizer import tiny_tokenizer

PATH = "/v1/embeddings"
BODY: dict[str, Any] = {"model": "fake", "input": "What is a cache?"}
IDS = list(range(20, 43))


def expected(prompt: Sequence[int], pooling: str = "mean") -> list[float]:
    states = np.array(fake_states(prompt, 256))
    vector = states.mean(0) if pooling == "mean" else states[-1]
    return list(vector / np.linalg.norm(vector))


def vectors(answer: dict[str, Any]) -> list[Any]:
    assert answer["object"] == "list" and [item["index"] for item in answer["data"]] == list(range(len(answer["data"])))
    assert {item["object"] for item in answer["data"]} == {"embedding"}
    return [item["embedding"] for item in answer["data"]]


async def embed(server: Site, **changes: Any) -> dict[str, Any]:
    response = await server.post(PATH, {**BODY, **changes})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def test_all_forms_of_input() -> None:
    text = tiny_tokenizer().encode("a text")
    async with site() as server:
        for given, prompts in (
            ("a text", [text]),
            (["a text", "x"], [text, tiny_tokenizer().encode("x")]),
            (IDS, [IDS]),
            ([IDS, [3]], [IDS, [3]]),
        ):
            answer = await embed(server, input=given)
            for vector, prompt in zip(vectors(answer), prompts, strict=True):
                assert vector == pytest.approx(expected(prompt), abs=1e-6)
            count = sum(map(len, prompts))
            assert (answer["usage"], answer["model"]) == ({"prompt_tokens": count, "total_tokens": count}, "fake")
        await server.settle()


async def test_both_formats_hold_the_same_numbers() -> None:
    async with site() as server:
        (numbers,) = vectors(await embed(server, encoding_format="float"))
        (text,) = vectors(await embed(server, encoding_format="base64"))
        assert list(np.frombuffer(b64decode(text), "<f4")) == numbers
        assert sum(number * number for number in numbers) == pytest.approx(1, abs=1e-6)


async def test_pooling_is_a_setting_and_a_field_and_decides_about_the_cache() -> None:
    async with site(model__embedding_pooling="last") as server:
        for pooling, cached in ((None, 0), ("last", len(IDS)), ("mean", 0)):
            response = await server.post(PATH, {**BODY, "input": IDS, "pooling": pooling})
            (vector,) = vectors(response.json())
            assert vector == pytest.approx(expected(IDS, pooling or "last"), abs=1e-6)
            assert response.headers["x-openai-kv-cache-hit-tokens"] == str(cached)
        assert server.runner.inner.num_rows == 2 * len(IDS)
        await server.settle()


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"input": ""}, "empty_string", "input"),
        ({"input": []}, "empty_array", "input"),
        ({"input": [[]]}, "empty_array", "input[0]"),
        ({"input": ["a", ""]}, "empty_string", "input[1]"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": ["a", [1]]}, "invalid_type", "input[1]"),
        ({"input": [1, "a"]}, "invalid_type", "input[1]"),
        ({"input": [1, 256]}, "invalid_value", "input[1]"),
        ({"input": [[1], [-1]]}, "invalid_value", "input[1][0]"),
        ({"input": ["a"] * 2049}, "array_above_max_length", "input"),
        ({"input": [1] * 513}, "context_length_exceeded", "input"),
        ({"input": ["a", "b" * 513]}, "context_length_exceeded", "input[1]"),
        ({"encoding_format": "int8"}, "invalid_value", "encoding_format"),
        ({"dimensions": 4}, "unsupported_parameter", "dimensions"),
        ({"pooling": "cls"}, "invalid_value", "pooling"),
        ({"normalize": False}, "unsupported_parameter", "normalize"),
        ({"truncate_prompt_tokens": 8}, "unsupported_parameter", "truncate_prompt_tokens"),
        ({"prompt": "a"}, "unknown_parameter", "prompt"),
        ({"stream": True}, "unknown_parameter", "stream"),
    ],
)
async def test_what_is_refused(changes: dict[str, Any], code: str, param: str) -> None:
    async with site() as server:
        check_error(await server.post(PATH, {**BODY, **changes}), 400, code, param)
        assert server.runner.inner.num_rows == 0


async def test_what_asks_for_nothing_else_is_accepted() -> None:
    async with site() as server:
        await embed(server, dimensions=8, normalize=True, user="u", session_id="s", priority=3)
        await embed(server, input=[1] * 512)
        check_error(await server.post(PATH, {**BODY, "model": "other"}), 404, "model_not_found", "model")
        message = check_error(
            await server.post(PATH, {**BODY, "dimensions": 4}), 400, "unsupported_parameter", "dimensions"
        )
        assert "8 dimensions" in message["message"]


async def test_as_many_as_may_come_at_once_leave_no_block() -> None:
    async with site() as server:
        answer = await embed(server, input=[[index % 200, index // 200] for index in range(2048)])
        assert len(vectors(answer)) == 2048 and answer["usage"]["prompt_tokens"] == 4096
        await server.settle()
        assert (await server.engine.stats()).cache.cached == 0


async def test_keys_do_not_see_each_others_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice,bob")
    async with site(model__embedding_pooling="last") as server:
        check_error(await server.post(PATH, BODY), 401, "invalid_api_key")
        found = [
            (await server.post(PATH, {**BODY, **salt}, authorization=f"Bearer {key}")).headers[
                "x-openai-kv-cache-hit-tokens"
            ]
            for key, salt in (("alice", {}), ("alice", {}), ("bob", {}), ("alice", {"cache_salt": "x"}))
        ]
        assert found == ["0", "16", "0", "0"]


async def test_queue_priority_rate_and_deadline_hold_here_too() -> None:
    async with site(server__max_queue=1, server__allow_priority=False, server__rate_limit_rpm=6) as server:
        check_error(await server.post(PATH, {**BODY, "priority": 1}), 403, "priority_not_allowed", "priority")
        server.runner.hold()
        running = asyncio.create_task(server.post(PATH, BODY))
        await server.step_entered()
        waiting = asyncio.create_task(server.post(PATH, BODY))
        await server.active(2)
        full = await server.post(PATH, BODY)
        check_error(full, 429, "queue_full")
        assert full.headers["retry-after"]
        check_error(await server.post(PATH, BODY, **{"x-request-timeout": "0.05"}), 429, "queue_full")
        late = await server.post(PATH, BODY, **{"x-request-timeout": "bad"})
        check_error(late, 400, "invalid_value", "X-Request-Timeout")
        check_error(await server.post(PATH, BODY), 429, "rate_limit_exceeded")
        server.runner.release()
        assert [(await task).status_code for task in (running, waiting)] == [200, 200]
        await server.settle()


async def test_a_deadline_in_the_middle() -> None:
    async with site() as server:
        server.runner.hold()
        check_error(await server.post(PATH, BODY, **{"x-request-timeout": "0.05"}), 408, "request_timeout")
        server.runner.release()
        await server.settle()


async def test_a_step_that_fails_is_ours() -> None:
    async with site() as server:
        server.runner.inner.fail_at = {1}
        check_error(await server.post(PATH, BODY), 500, "internal_error")
        await embed(server)
        await server.settle()


async def test_hang_up() -> None:
    async with live_site() as (server, url):
        server.runner.hold()
        async with connection(url, {**BODY, "input": [[index] for index in range(40)]}, PATH):
            await server.step_entered()
        await server.exporter.until(lambda: len(server.exporter.http) == 1)
        await aborted(server, 1, "disconnect")
        assert len(server.runner.inner.rows) <= 2


async def test_what_exporters_are_told() -> None:
    async with site() as server:
        await embed(server, input=[IDS, [3]])
        await server.exported()
        (stats,) = server.exporter.http
        assert (stats.route, stats.generation and stats.generation.operation) == (PATH, "embeddings")
        assert stats.generation is not None and stats.generation.num_prompt_tokens == len(IDS) + 1
        assert {(each.info.kind, each.finish_reason) for each in server.exporter.requests} == {("embedding", "stop")}


async def test_the_async_sdk() -> None:
    async with (
        live_site() as (_, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        default = await client.embeddings.create(model="fake", input=["What is a cache?", "x"])
        plain = await client.embeddings.create(model="fake", input=["What is a cache?", "x"], encoding_format="float")
        assert default.data == plain.data and default.usage.total_tokens == 17
        assert default.data[1].embedding == pytest.approx(expected(tiny_tokenizer().encode("x")), abs=1e-6)
        tokens = await client.embeddings.create(model="fake", input=[IDS, IDS[:5]], dimensions=8, user="u")
        assert tokens.data[0].embedding == pytest.approx(expected(IDS), abs=1e-6)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model="fake", input="a", dimensions=3)
        assert (caught.value.param, caught.value.code) == ("dimensions", "unsupported_parameter")


async def test_the_sync_sdk() -> None:
    def ask(url: str) -> tuple[list[float], list[float]]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            create = client.embeddings.create
            last = create(model="fake", input=IDS, extra_body={"pooling": "last"})
            return create(model="fake", input=IDS).data[0].embedding, last.data[0].embedding

    async with live_site() as (_, url):
        mean, last = await asyncio.to_thread(ask, url)
    assert mean == pytest.approx(expected(IDS), abs=1e-6) and last == pytest.approx(expected(IDS, "last"), abs=1e-6)


def test_what_is_no_number_is_an_error_and_nothing_stays_nothing() -> None:
    def output(*values: float) -> RequestOutput:
        return RequestOutput("r", "", (), 1, 0, 0, 0, "miss", embedding=array("f", values))

    with pytest.raises(InternalError):
        unit(output(1.0, float("nan")))
    assert list(unit(output(0.0, 0.0))) == [0.0, 0.0]
    assert list(unit(output(3e38, 0.0))) == [1.0, 0.0]
    json.dumps(unit(output(3.0, 4.0)).tolist(), allow_nan=False)
