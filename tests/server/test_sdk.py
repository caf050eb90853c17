"""The real `openai` SDK against a real server."""

import asyncio
import random
from typing import Any

import openai
import pytest

from tests.server.serving import CHAT, MESSAGES, live_site
from tests.tiny_tokenizer import tiny_tokenizer


def sdk(url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def test_async_client() -> None:
    async with live_site() as (server, url), sdk(url) as client:
        whole = await client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
        assert whole.choices[0].finish_reason == "length"
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            **CHAT, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        usage = chunks[-1].usage
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens
        completion = await client.completions.create(model="fake", prompt=["a", "b"], max_tokens=3)
        assert [choice.index for choice in completion.choices] == [0, 1]
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).owned_by == "openai-kv"
        await server.settle()


async def test_several_choices_with_log_probabilities() -> None:
    async with live_site() as (server, url), sdk(url) as client:
        asked = {**CHAT, "n": 2, "logprobs": True, "top_logprobs": 2}
        whole = await client.chat.completions.create(**asked)  # type: ignore[call-overload]
        assert [choice.index for choice in whole.choices] == [0, 1]
        stream = await client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
        pieces = [chunk.choices[0] async for chunk in stream]
        for choice in whole.choices:
            told = [piece.logprobs for piece in pieces if piece.index == choice.index and piece.logprobs]
            streamed = [entry for logprobs in told for entry in logprobs.content or []]
            assert streamed == choice.logprobs.content
            assert [len(entry.top_logprobs) for entry in streamed] == [2] * 8
            assert bytes(byte for entry in streamed for byte in entry.bytes or []).decode(errors="replace")
        completion = await client.completions.create(
            model="fake", prompt=["a", "bc"], max_tokens=1, logprobs=1, echo=True, n=2, best_of=3
        )
        assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
        for answered, length in zip(completion.choices, (1, 1, 2, 2), strict=True):
            assert answered.logprobs is not None and answered.logprobs.tokens is not None
            assert len(answered.logprobs.tokens) == length + 1
        await server.settle()


async def test_prompt_caching_as_the_sdk_has_it() -> None:
    mark: Any = {"mode": "explicit", "ttl": "30m"}
    options: Any = {"mode": "explicit", "ttl": "12h"}
    contents: Any = [
        {"type": "text", "text": "A long document.", "prompt_cache_breakpoint": mark},
        {"type": "text", "text": "A question"},
    ]
    async with live_site() as (server, url), sdk(url) as client:
        create = client.chat.completions.create
        counts = []
        for question in ("One?", "Two?"):
            answer = await create(
                model="fake",
                messages=[{"role": "user", "content": [*contents, {"type": "text", "text": question}]}],
                max_tokens=4,
                prompt_cache_key="documents",
                prompt_cache_retention="24h",
                prompt_cache_options=options,
            )
            assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
            counts.append(answer.usage.prompt_tokens_details)
        end = len(tiny_tokenizer().encode("<|im_start|>user\nA long document."))
        assert (counts[0].cached_tokens, counts[1].cached_tokens) == (0, end)
        assert [detail.model_dump()["cache_write_tokens"] for detail in counts] == [end, 0]
        with pytest.raises(openai.BadRequestError) as caught:
            await create(**CHAT, prompt_cache_options={"ttl": "30d"})  # type: ignore[call-overload]
        assert caught.value.param == "prompt_cache_options.ttl"
        plain = await client.completions.create(
            model="fake", prompt="A long document.", extra_body={"prompt_cache_options": {"ttl": "1h"}}, max_tokens=2
        )
        assert plain.choices[0].finish_reason == "length"
        blocks = (await server.client.get("/cache/stats")).json()["blocks"]
        assert blocks["soft_pinned"] == blocks["cached"] - 1  # the last block of the answer
        await server.settle()


async def test_sync_client() -> None:
    def talk(url: str) -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(**CHAT)  # type: ignore[call-overload]
            with client.chat.completions.create(**CHAT, stream=True) as stream:  # type: ignore[call-overload]
                pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
        return whole.choices[0].message.content, "".join(pieces)

    async with live_site() as (server, url):
        whole, streamed = await asyncio.to_thread(talk, url)
        assert whole == streamed
        await server.settle()


async def test_fifty_streams_with_hang_ups_leave_nothing_behind() -> None:
    rng = random.Random(0)
    leaves = [rng.random() < 0.5 for _ in range(50)]

    async def talk(client: openai.AsyncOpenAI, number: int, *, leaves: bool) -> str | None:
        """The last finish reason it saw: none for one that hangs up after a chunk."""
        messages = [{"role": "user", "content": f"question {number % 7}"}]
        params = {**CHAT, "messages": messages, "max_tokens": 400}
        reason: str | None = None
        async with await client.chat.completions.create(**params, stream=True) as stream:  # type: ignore[call-overload]
            async for chunk in stream:
                reason = chunk.choices[0].finish_reason
                if leaves:
                    break
        return reason

    async with live_site() as (server, url), sdk(url) as client:
        reasons = await asyncio.gather(*(talk(client, number, leaves=left) for number, left in enumerate(leaves)))
        assert reasons == [None if left else "length" for left in leaves]
        await server.exporter.until(lambda: len(server.exporter.http) == 50)
        assert set(server.exporter.aborts) <= {"disconnect"}  # empty if the engine was faster than every hang-up
        await server.settle()


async def test_errors_are_the_exceptions_of_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice")
    monkeypatch.setenv("OPENAI_KV_ADMIN_KEY", "root")
    async with live_site(server__max_queue=1) as (server, url), sdk(url, "alice") as client:
        create = client.chat.completions.create
        with pytest.raises(openai.BadRequestError) as caught:
            await create(model="fake", messages=MESSAGES, temperature=3)  # type: ignore[arg-type]
        assert (caught.value.code, caught.value.param) == ("decimal_above_max_value", "temperature")
        assert caught.value.type == "invalid_request_error"
        with pytest.raises(openai.NotFoundError):
            await create(model="other", messages=MESSAGES)  # type: ignore[arg-type]
        async with sdk(url, "mallory") as stranger:
            with pytest.raises(openai.AuthenticationError):
                await stranger.models.list()
        with pytest.raises(openai.PermissionDeniedError):
            await client.post(f"{url}/cache/reset", cast_to=object)
        with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens"):
            await create(model="fake", messages=[{"role": "user", "content": "x" * 600}])
        server.runner.hold()
        busy = [asyncio.create_task(create(**CHAT))]  # type: ignore[call-overload]
        await server.step_entered()
        busy.append(asyncio.create_task(create(**CHAT)))  # type: ignore[call-overload]
        await server.active(2)
        with pytest.raises(openai.RateLimitError) as limited:
            await create(**CHAT)  # type: ignore[call-overload]
        assert limited.value.response.headers["retry-after"]
        with pytest.raises(openai.APIStatusError) as late:
            await create(**CHAT, extra_headers={"X-Request-Timeout": "0.0001"})  # type: ignore[call-overload]
        assert late.value.status_code in (408, 429)
        server.runner.release()
        await asyncio.gather(*busy)
        server.context.lifecycle.drain_deadline = 0.0
        with pytest.raises(openai.InternalServerError) as draining:
            await create(**CHAT)  # type: ignore[call-overload]
        assert draining.value.status_code == 503
        await server.settle()


async def test_an_error_in_mid_stream_is_raised_by_the_iterator() -> None:
    async with live_site() as (server, url), sdk(url) as client:
        server.runner.inner.fail_at = {4}
        stream = await client.chat.completions.create(**CHAT, stream=True)  # type: ignore[call-overload]
        with pytest.raises(openai.APIError, match="engine failed"):
            async for _ in stream:
                pass
        await server.settle()


async def test_the_sdk_tries_again_after_retry_after() -> None:
    async with live_site() as (server, url), sdk(url) as client:
        server.context.lifecycle.drain_deadline = 0.0
        patient = client.with_options(max_retries=1)
        request = asyncio.create_task(patient.chat.completions.create(**CHAT))  # type: ignore[call-overload]
        await server.exporter.until(lambda: len(server.exporter.http) == 1)
        server.context.lifecycle.drain_deadline = None
        assert (await request).choices[0].finish_reason == "length"
        await server.exporter.until(lambda: [stats.status for stats in server.exporter.http] == [503, 200])


async def test_what_says_so_is_not_tried_again() -> None:
    async with live_site() as (server, url), sdk(url) as client:
        patient = client.with_options(max_retries=3)
        server.runner.hold()
        with pytest.raises(openai.APIStatusError) as late:
            await patient.chat.completions.create(**CHAT, extra_headers={"X-Request-Timeout": "0.05"})  # type: ignore[call-overload]
        assert (late.value.status_code, late.value.code) == (408, "request_timeout")
        server.runner.release()
        await server.exporter.until(lambda: len(server.exporter.http) == 1)
        await server.settle()
        assert [stats.status for stats in server.exporter.http] == [408]
