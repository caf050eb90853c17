import asyncio
import time

import openai
import pytest

from openai_kv.errors import OverloadedError
from openai_kv.server.rate_limit import RateLimiter
from tests.server.serving import CHAT, check_error, live_site, site


def test_a_bucket_empties_and_fills_again() -> None:
    now = 0.0
    limiter = RateLimiter(6, lambda: now)
    remaining = [limiter.take(b"a").remaining for _ in range(6)]
    assert remaining == [5, 4, 3, 2, 1, 0]
    refused = limiter.take(b"a")
    assert (refused.remaining, refused.wait, refused.reset) == (0, 10, 60)
    with pytest.raises(OverloadedError) as caught:
        refused.check()
    assert caught.value.retry_after == 10
    assert limiter.take(b"b").remaining == 5
    now = 10.0
    limiter.take(b"a").check()
    now = 15.0
    half = limiter.take(b"a")
    assert (half.remaining, half.wait, half.headers["x-ratelimit-reset-requests"]) == (0, 5, "55s")
    now = 1000.0
    assert limiter.take(b"a").remaining == 5


async def test_limit_of_each_key_and_its_place_among_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice,bob")
    alice, bob = {"authorization": "Bearer alice"}, {"authorization": "Bearer bob"}
    async with site(server__rate_limit_rpm=2) as server:
        path = "/v1/chat/completions"
        assert "x-ratelimit-limit-requests" not in (await server.client.post(path, json=CHAT)).headers
        assert "x-ratelimit-limit-requests" not in (await server.client.get(path, headers=alice)).headers
        first = await server.client.post(path, json=CHAT, headers=alice)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        bad = await server.client.post("/generate", content=b"{", headers=alice)
        check_error(bad, 400, "invalid_json")
        assert bad.headers["x-ratelimit-remaining-requests"] == "0"
        plain = {**alice, "content-type": "text/plain"}
        refused = await server.client.post("/v1/completions", content=b"{", headers=plain)
        assert check_error(refused, 429, "rate_limit_exceeded")["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await server.client.post(path, json=CHAT, headers=bob)).status_code == 200
        assert (await server.client.post("/tokenize", json={"prompt": "a"}, headers=alice)).status_code == 200
        server.context.lifecycle.drain_deadline = time.monotonic() + 5
        check_error(await server.client.post(path, json=CHAT, headers=alice), 503, "draining")
        server.context.lifecycle.drain_deadline = None


async def test_off_by_default() -> None:
    async with site() as server:
        assert "x-ratelimit-limit-requests" not in (await server.chat()).headers


async def test_the_sdk_waits_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("openai_kv.server.app.RateLimiter", lambda rpm: RateLimiter(rpm, lambda: now))
    async with (
        live_site(server__rate_limit_rpm=60) as (server, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        for _ in range(60):
            await server.client.post("/generate")
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(model="fake", prompt="a")
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.response.headers["retry-after"] == "1"
        patient = client.with_options(max_retries=1).completions.create(model="fake", prompt="a", max_tokens=1)
        request = asyncio.create_task(patient)
        await server.exporter.until(lambda: len(server.exporter.http) == 62)
        now = 1.0
        assert (await request).choices[0].finish_reason == "length"
        await server.exporter.until(lambda: len(server.exporter.http) == 63)
        assert [stats.status for stats in server.exporter.http[60:]] == [429, 429, 200]
