"""prompt_cache_options, breakpoints and prompt_cache_retention, over HTTP."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from openai_kv.request import Breakpoint, Retention
from tests.server.serving import SHAPE, Site, check_error, site
from tests.tiny_tokenizer import tiny_tokenizer

EXPLICIT = {"mode": "explicit"}


@dataclass
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def part(text: str, **fields: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "prompt_cache_breakpoint": {**EXPLICIT, **fields}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def messages(*contents: object) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content} for content in contents]


def length(text: str) -> int:
    """In tokens, up to the end of `text` in the first message."""
    return len(tiny_tokenizer().encode(f"<|im_start|>user\n{text}"))


async def chat(server: Site, contents: list[object], **changes: Any) -> dict[str, int]:
    """Its prompt's counts."""
    answer = await server.chat(messages=messages(*contents), **changes)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    return {"prompt": usage["prompt_tokens"], **usage["prompt_tokens_details"]}


async def blocks(server: Site) -> dict[str, int]:
    counts: dict[str, int] = (await server.client.get("/cache/stats")).json()["blocks"]
    return counts


async def flood(server: Site, num_blocks: int, times: int = 12) -> None:
    for number in range(times):
        ids = [100 + number] * (num_blocks * SHAPE.block_size - 1)
        assert (await server.post("/generate", {"prompt_token_ids": ids, "max_tokens": 1})).status_code == 200


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Site], list[Retention]]:
    """What the engine is told, request by request."""

    def watch(server: Site) -> list[Retention]:
        told: list[Retention] = []
        generate = server.engine.generate

        def recorded(request: Any) -> Any:
            told.append(request.info.retention)
            return generate(request)

        monkeypatch.setattr(server.engine, "generate", recorded)
        return told

    return watch


async def test_explicit_mode_repeats_up_to_the_last_breakpoint() -> None:
    async with site() as server:
        contents: list[object] = [[part("The document."), part("The rules.")], "A question"]
        end = length("The document.\nThe rules.")
        first = await chat(server, contents, prompt_cache_options=EXPLICIT)
        assert (first["cached_tokens"], first["cache_write_tokens"]) == (0, end)
        again = await chat(server, contents, prompt_cache_options=EXPLICIT)
        assert (again["cached_tokens"], again["cache_write_tokens"]) == (end, 0)
        contents = [[part("The document."), part("Other rules.")], "A question"]
        other = await chat(server, contents, prompt_cache_options=EXPLICIT)
        assert other["cached_tokens"] == length("The document.\n")
        await server.settle()


async def test_explicit_mode_without_a_breakpoint_leaves_no_trace() -> None:
    async with site() as server:
        await server.chat()
        before = await blocks(server)
        calm = await chat(server, ["What is a cache?"], prompt_cache_options=EXPLICIT)
        assert (calm["cached_tokens"], calm["cache_write_tokens"]) == (0, 0)
        for path, field in (("/v1/completions", "prompt"), ("/generate", "prompt")):
            body = {"model": "fake", field: "What?", "max_tokens": 3, "prompt_cache_options": EXPLICIT}
            for _ in range(2):
                usage = (await server.post(path, body)).json()["usage"]["prompt_tokens_details"]
                assert usage == {"cached_tokens": 0, "cache_write_tokens": 0}
        assert await blocks(server) == before


async def test_a_soft_pinned_prefix_survives_a_flood_until_its_time_is_over() -> None:
    clock = Time()
    async with site(cache_clock=clock) as server:
        contents: list[object] = [[part("x" * 100, ttl="10m"), text("?")]]
        end = length("x" * 100)
        await chat(server, contents)
        pinned = -(-end // SHAPE.block_size)
        assert (await blocks(server))["soft_pinned"] == pinned
        for clock.now in (500.0, 1000.0, 1500.0):  # every hit starts the ten minutes anew
            await flood(server, SHAPE.num_blocks // 2)
            assert (await chat(server, [[part("x" * 100, ttl="10m"), text("!")]]))["cached_tokens"] >= end
        clock.now = 1500.0 + 600.0
        assert (await blocks(server))["soft_pinned"] == 0
        await flood(server, SHAPE.num_blocks // 2)
        assert (await chat(server, contents))["cached_tokens"] < end
        await server.settle()


async def test_the_latest_breakpoints_count_and_a_ttl_marks_the_end(seen: Callable[[Site], list[Retention]]) -> None:
    async with site(cache__ttl_default="20m") as server:
        told = seen(server)
        texts = [str(number) for number in range(6)]
        contents: list[object] = [[part(text, ttl="1m") if text == "4" else part(text) for text in texts]]
        ends = [length("\n".join(texts[: number + 1])) for number in range(6)]
        prompt = (await chat(server, contents))["prompt"]
        await chat(server, contents, prompt_cache_options={"ttl": "12h"}, prompt_cache_retention="in_memory")
        await chat(server, contents, prompt_cache_options=EXPLICIT)
        assert told[0] == Retention(breakpoints=tuple(map(Breakpoint, ends[3:], (1200, 60, 1200))))
        twelve = (*map(Breakpoint, ends[3:], (43200, 60, 43200)), Breakpoint(prompt, 43200))
        assert told[1] == Retention(breakpoints=twelve, in_memory=True)
        assert told[2] == Retention(True, tuple(map(Breakpoint, ends[2:], (1200, 1200, 60, 1200))))
        await server.post("/generate", {"prompt": "abc", "max_tokens": 1, "prompt_cache_options": {"ttl": "5s"}})
        assert told[3].breakpoints == (Breakpoint(3, 5),)
        await server.post("/generate", {"messages": messages([part("ab")]), "max_tokens": 1})
        assert told[4].breakpoints == (Breakpoint(length("ab"), 1200),)


async def test_a_lost_breakpoint_is_a_warning() -> None:
    template = "{{ messages[-1]['content'] }}"
    async with site(tokenizer=tiny_tokenizer(template)) as server:
        for stream in (False, True):
            answer = await server.chat(messages=messages([part("gone")], "here"), stream=stream)
            assert answer.headers["x-openai-kv-warnings"] == "unmapped_breakpoint=messages[0].content[0]"


async def test_what_is_refused() -> None:
    async with site(cache__ttl_max="1h") as server:

        async def refused(code: str, param: str, **changes: Any) -> None:
            check_error(await server.chat(**changes), 400, code, param)

        options = "prompt_cache_options"
        await refused("invalid_value", f"{options}.mode", prompt_cache_options={"mode": "auto"})
        await refused("invalid_value", f"{options}.ttl", prompt_cache_options={"ttl": "2h"})
        await refused("invalid_type", f"{options}.ttl", prompt_cache_options={"ttl": 30})
        await refused("unknown_parameter", f"{options}.tll", prompt_cache_options={"tll": "30m"})
        await refused("invalid_value", "prompt_cache_retention", prompt_cache_retention="1h")
        path = "messages[0].content[0].prompt_cache_breakpoint"
        bad = [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"ttl": "30m"}}]
        await refused("missing_required_parameter", f"{path}.mode", messages=messages(bad))
        await refused("invalid_value", f"{path}.ttl", messages=messages([part("x", ttl="30 m")]))
        await refused("invalid_value", f"{path}.ttl", messages=messages([part("x", ttl="2h")]))
