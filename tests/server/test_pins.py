import asyncio
import hashlib
import re
from collections.abc import Sequence

import pytest

from openai_kv.metrics import PinRecord
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from openai_kv.request import PinOrder
from tests.server.serving import MESSAGES, SHAPE, Site, check_error, site

ADMIN = {"authorization": "Bearer root"}
USER = {"authorization": "Bearer alice"}
PREFIX = list(range(1, 11))
PIN = {"prompt_token_ids": PREFIX}
FIELDS = {"id", "label", "tokens", "blocks", "cached_tokens", "created", "expires_at"}


async def cached_tokens(server: Site, prompt: list[int], **changes: object) -> int:
    answer = await server.post("/generate", {"prompt_token_ids": prompt, "max_tokens": 1, **changes})
    count: int = answer.json()["cache_hit_tokens"]
    return count


async def blocks(server: Site) -> dict[str, int]:
    counts: dict[str, int] = (await server.client.get("/cache/stats")).json()["blocks"]
    return counts


async def test_the_life_of_a_pin() -> None:
    async with site() as server:
        made = (await server.post("/cache/pin", {**PIN, "ttl": "12h", "label": "ten"})).json()
        assert set(made) == FIELDS and re.fullmatch(r"pin_[0-9a-f]{32}", made["id"])
        assert (made["label"], made["tokens"], made["blocks"], made["cached_tokens"]) == ("ten", 10, 3, 0)
        assert made["expires_at"] - made["created"] == 12 * 3600
        assert server.runner.inner.num_rows == 10
        again = (await server.post("/cache/pin", PIN)).json()
        assert (again["cached_tokens"], again["expires_at"] - again["created"]) == (10, 1800)
        assert server.runner.inner.num_rows == 10
        stats = (await server.client.get("/cache/stats")).json()
        assert (stats["pins"], stats["blocks"]["pinned"], stats["blocks"]["referenced"]) == (2, 3, 0)
        assert await cached_tokens(server, [*PREFIX, 99]) == 10
        listed = (await server.client.get("/cache/pin")).json()["pins"]
        assert listed == [{**made, "hits": 1}, {**again, "hits": 1}]
        for pin in (made, again):
            deleted = await server.client.delete(f"/cache/pin/{pin['id']}")
            assert deleted.json() == {"id": pin["id"], "deleted": True}
        check_error(await server.client.delete(f"/cache/pin/{made['id']}"), 404, "pin_not_found")
        assert (await blocks(server))["pinned"] == 0
        await server.settle()


async def test_a_pin_expires() -> None:
    now = 0.0
    async with site(cache_clock=lambda: now) as server:
        made = (await server.post("/cache/pin", {**PIN, "ttl": "10s"})).json()
        now = 9.0
        assert (await blocks(server))["pinned"] == 3
        now = 10.0
        assert (await blocks(server))["pinned"] == 0
        assert (await server.client.get("/cache/pin")).json() == {"pins": []}
        check_error(await server.client.delete(f"/cache/pin/{made['id']}"), 404, "pin_not_found")


async def test_messages_are_pinned_as_chats_begin() -> None:
    async with site() as server:
        made = (await server.post("/cache/pin", {"messages": MESSAGES})).json()
        chat = {"model": "fake", "messages": [*MESSAGES, {"role": "assistant", "content": "A"}], "max_tokens": 1}
        answer = (await server.post("/v1/chat/completions", chat)).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == made["tokens"]
        prompt = (await server.post("/cache/pin", {"prompt": "some text"})).json()
        completion = {"model": "fake", "prompt": "some text and more", "max_tokens": 1}
        answer = (await server.post("/v1/completions", completion)).json()
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == prompt["tokens"] == 9


async def test_a_hard_pin_survives_any_flood_and_a_reset() -> None:
    async with site() as server:
        await server.post("/cache/pin", PIN)
        for number in range(8):
            await cached_tokens(server, [11 + number] * 400)
        assert (await server.client.get("/cache/stats")).json()["eviction_count"] > 0
        assert await cached_tokens(server, PREFIX) == 10
        result = (await server.client.post("/cache/reset")).json()
        assert result["kept_blocks"] == 3
        assert await cached_tokens(server, PREFIX) == 10
        result = (await server.post("/cache/reset", {"include_pinned": True})).json()
        assert (result["kept_blocks"], (await blocks(server))["free"]) == (0, SHAPE.num_blocks)
        assert (await server.client.get("/cache/pin")).json() == {"pins": []}


async def test_limits() -> None:
    async with site(cache__max_pins=1, cache__max_pinned_fraction=0.05) as server:
        many = [1] * 52
        check_error(await server.post("/cache/pin", {"prompt_token_ids": many}), 400, "pin_limit_exceeded")
        assert server.runner.inner.num_rows == 0
        assert (await server.post("/cache/pin", {"prompt_token_ids": many[:48]})).status_code == 200
        error = check_error(await server.post("/cache/pin", PIN), 400, "pin_limit_exceeded")
        assert error["type"] == "invalid_request_error"
        await server.settle()


async def test_a_limit_that_is_reached_while_it_computes() -> None:
    async with site(cache__max_pins=1) as server:
        original, both_miss = server.engine.pin, asyncio.Barrier(2)

        async def pin(order: PinOrder, namespace: str, prompt: Sequence[int]) -> PinRecord | None:
            record = await original(order, namespace, prompt)
            if record is None:
                await both_miss.wait()
            return record

        server.engine.pin = pin  # type: ignore[method-assign]
        bodies = (PIN, {"prompt_token_ids": [50] * 10})
        both = [asyncio.create_task(server.post("/cache/pin", body)) for body in bodies]
        assert sorted([(await response).status_code for response in both]) == [200, 400]
        assert len(await server.engine.pins()) == 1
        await server.settle()


async def test_a_reset_in_between_is_made_good() -> None:
    async with site() as server:
        engine = await server.engine.call(lambda engine: engine)
        inner = server.runner.inner
        original = inner.execute_model

        def execute(scheduled: SchedulerOutput) -> ModelRunnerOutput:
            if scheduled.requests:
                inner.execute_model = original  # type: ignore[method-assign]
                engine.reset_cache()
            return original(scheduled)

        inner.execute_model = execute  # type: ignore[method-assign]
        made = (await server.post("/cache/pin", PIN)).json()
        assert (made["tokens"], inner.num_rows) == (10, 20)
        assert await cached_tokens(server, [*PREFIX, 99]) == 10
        await server.settle()


async def test_pins_are_the_admins_and_go_to_the_key_they_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice")
    monkeypatch.setenv("OPENAI_KV_ADMIN_KEY", "root")
    async with site() as server:
        check_error(await server.post("/cache/pin", PIN, **USER), 403, "admin_key_required")
        check_error(await server.client.get("/cache/pin", headers=USER), 403, "admin_key_required")
        check_error(await server.client.delete("/cache/pin/pin_1", headers=USER), 403, "admin_key_required")
        alice = hashlib.sha256(b"alice").hexdigest()[:8]
        made = await server.post("/cache/pin", {**PIN, "key_id": alice, "cache_salt": "x"}, **ADMIN)
        assert made.status_code == 200
        found = await server.post("/generate", {**PIN, "cache_salt": "x", "max_tokens": 1}, **USER)
        assert found.json()["cache_hit_tokens"] == 10
        for headers, salt in ((ADMIN, "x"), (USER, "y")):
            other = await server.post("/generate", {**PIN, "cache_salt": salt, "max_tokens": 1}, **headers)
            assert other.json()["cache_hit_tokens"] == 0
        check_error(
            await server.post("/cache/pin", {**PIN, "key_id": "0" * 8}, **ADMIN), 400, "invalid_value", "key_id"
        )


async def test_bad_bodies() -> None:
    async with site(cache__ttl_max="1h") as server:

        async def refused(body: dict[str, object], code: str, param: str | None) -> None:
            check_error(await server.post("/cache/pin", body), 400, code, param)

        for ttl in ("30", "0s", "1d", "-1s", "01s", "61m", "1" * 5000 + "s"):
            await refused({**PIN, "ttl": ttl}, "invalid_value", "ttl")
        await refused({**PIN, "ttl": 30}, "invalid_type", "ttl")
        await refused({**PIN, "label": "x" * 65}, "string_above_max_length", "label")
        await refused({**PIN, "cache_salt": "a/b"}, "invalid_value", "cache_salt")
        await refused({**PIN, "lable": "x"}, "unknown_parameter", "lable")
        await refused({}, "invalid_parameter_combination", "prompt")
        await refused({**PIN, "prompt": "x"}, "invalid_parameter_combination", "prompt_token_ids")
        await refused({"prompt_token_ids": [1] * 600}, "context_length_exceeded", "prompt_token_ids")
        await refused({**PIN, "chat_template_kwargs": {}}, "invalid_parameter_combination", "chat_template_kwargs")
        generating = {"messages": MESSAGES, "add_generation_prompt": True}
        await refused(generating, "unsupported_parameter", "add_generation_prompt")
        response = await server.client.get("/cache/pin/pin_1")
        check_error(response, 405, "method_not_supported")
        assert response.headers["allow"] == "DELETE"
