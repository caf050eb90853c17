"""Models of an upstream, over real sockets on both sides."""

import asyncio
import json
import logging
import socket
from asyncio import StreamReader, StreamWriter
from typing import Any

import httpx
import openai
import pytest

from openai_kv.engine.async_engine import EngineState
from tests.server.remote import EVENTS_HEAD, Remote, answering, chunk, remote, reset, silence, streaming
from tests.server.serving import CHAT, Site, check_error, events, live_site

CHAT_URL = "/v1/chat/completions"
GPT = {**CHAT, "model": "gpt-x"}
PIECES = (b'data: {"a"', b": 1}\r", b"\n\r\n: odd\xff\n", b"\ndata: [DO", b"NE]\n", b"\n")


def upstreams(url: str, pattern: str = "gpt-*", **settings: object) -> dict[str, Any]:
    return {"upstreams": {pattern: {"base_url": f"{url}/v1/", **settings}}}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


async def test_bodies_status_and_headers_pass_unchanged() -> None:
    body = b'{"any": [1.0,  "\\u00e9"],\n"any":2}'
    headers = {"openai_version": "7", "x_ratelimit_limit_tokens": "9", "x_request_id": "theirs", "retry_after": "99"}
    script = answering(body, "418 Teapot", **headers, set_cookie="a=b", server="x", openai_processing_ms="5")
    async with remote(script) as far, live_site(**upstreams(far.url)) as (server, url), httpx.AsyncClient() as client:
        sent = b'{ "model":"gpt-x", "temperature": 9e9, "n":1.0, "mystery":null, "model": "gpt-x" }'
        for path in (CHAT_URL, "/v1/completions", "/v1/embeddings", "/v1/chat/completions/input_tokens"):
            answer = await client.post(url + path, content=sent, headers={"x-request-id": "ours"})
            assert (answer.status_code, answer.content) == (418, body)
            assert far.received[-1].line == f"POST {path} HTTP/1.1"
            assert far.received[-1].body == sent
            assert answer.headers["x-request-id"] == "ours"
            assert answer.headers["x-upstream-request-id"] == "theirs"
            assert answer.headers["openai-processing-ms"] == "5"
            assert (answer.headers["openai-version"], answer.headers["x-ratelimit-limit-tokens"]) == ("7", "9")
            assert (answer.headers["retry-after"], answer.headers["content-type"]) == ("99", "application/json")
            assert "set-cookie" not in answer.headers and answer.headers["server"] != "x"
        assert far.open == 1, "the connection is used again"
        await server.exported()
        assert {(stats.route, stats.upstream) for stats in server.exporter.http} >= {(CHAT_URL, "gpt-*")}


async def test_what_the_upstream_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "client-key")
    monkeypatch.setenv("FAR_KEY", "far-key")
    options = {"model": "real", "api_key_env": "FAR_KEY"}
    async with remote(answering(b"{}")) as far, live_site(**upstreams(far.url, **options)) as (_, url):
        kept = {
            "content-type": "application/json; charset=utf-8",
            "accept": "text/x",
            "user-agent": "mine/1",
            "openai-beta": "b",
            "traceparent": "00-1-2-03",
            "tracestate": "s=1",
            "x-session-id": "chat 7",
            "x-request-id": "id-1",
        }
        dropped = {"cookie": "c=1", "openai-organization": "o", "x-stainless-os": "l", "x-forwarded-for": "1.2.3.4"}
        body = b'{"model": "gpt-x" , "x":1.50,"y":{"model":"gpt-x"}, "mod\\u0065l":"gpt-y"}\n'
        async with httpx.AsyncClient(headers={"authorization": "Bearer client-key"}) as client:
            answer = await client.post(url + CHAT_URL, content=body, headers={**kept, **dropped})
            assert answer.status_code == 200, answer.text
        told = far.received[0]
        hops = told.headers.pop("x-openai-kv-hops")
        assert len(hops) == 8 and int(hops, 16) >= 0
        ours = {"accept-encoding": "identity", "authorization": "Bearer far-key", "host": far.url[7:]}
        assert told.headers == {**kept, **ours, "content-length": str(len(told.body))}
        assert told.body == b'{"model": "real" , "x":1.50,"y":{"model":"gpt-x"}, "mod\\u0065l":"real"}\n'
        assert b"client-key" not in repr(far.received).encode()


async def test_without_a_key_of_its_own_the_upstream_gets_none() -> None:
    async with (
        remote(answering(b"{}")) as far,
        live_site(**upstreams(far.url)) as (_, url),
        httpx.AsyncClient() as client,
    ):
        await client.post(url + CHAT_URL, json=GPT, headers={"authorization": "Bearer secret"})
        assert "secret" not in repr(far.received) and "authorization" not in far.received[0].headers


async def test_streams_pass_byte_for_byte_and_as_they_come() -> None:
    headers_seen, go_on = asyncio.Event(), asyncio.Event()

    async def script(_remote: Remote, _reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(EVENTS_HEAD)
        await headers_seen.wait()
        writer.write(chunk(PIECES[0]))
        await go_on.wait()
        writer.write(b"".join(map(chunk, PIECES[1:])) + b"0\r\n\r\n")

    async with (
        remote(script) as far,
        live_site(server__sse_ping=0.01, **upstreams(far.url)) as (_, url),
        httpx.AsyncClient() as client,
        client.stream("POST", url + CHAT_URL, json={**GPT, "stream": True}) as answer,
    ):
        assert answer.headers["content-type"] == "text/event-stream"
        headers_seen.set()
        pieces = answer.aiter_raw()
        assert await anext(pieces) == PIECES[0], "before the next one is there, and without a keep-alive"
        await asyncio.sleep(0.05)
        go_on.set()
        assert b"".join([piece async for piece in pieces]) == b"".join(PIECES[1:])


async def test_a_megabyte_each_way() -> None:
    large = json.dumps({"data": "\N{SNOWMAN}x" * 2**18}, ensure_ascii=False).encode()
    assert len(large) > 2**20
    async with (
        remote(answering(large)) as far,
        live_site(**upstreams(far.url)) as (_, url),
        httpx.AsyncClient() as client,
    ):
        sent = json.dumps({**GPT, "messages": "x" * 2**20}).encode()
        answer = await client.post(url + CHAT_URL, content=sent)
        assert answer.content == large and far.received[0].body == sent


async def test_nobody_there() -> None:
    far = f"http://127.0.0.1:{free_port()}"
    async with live_site(**upstreams(far)) as (_, url), httpx.AsyncClient() as client:
        answer = await client.post(url + CHAT_URL, json=GPT)
        error = check_error(answer, 502, "upstream_unreachable")
        assert error["type"] == "upstream_error" and far[7:] not in error["message"]
        assert (await client.post(url + CHAT_URL, json=CHAT)).status_code == 200


async def test_no_tls_no_answer_and_redirects_are_unreachable() -> None:
    redirect = answering(b"", "307 Temporary Redirect", location="http://127.0.0.1:1/v1/chat/completions")
    for script, scheme in ((reset, "http"), (redirect, "http"), (answering(b"{}"), "https")):
        async with remote(script) as far:
            there = far.url.replace("http", scheme)
            async with live_site(**upstreams(there, connect_timeout=0.3)) as (_, url), httpx.AsyncClient() as client:
                check_error(await client.post(url + CHAT_URL, json=GPT), 502, "upstream_unreachable")


async def test_silence_before_the_headers() -> None:
    async with remote(silence) as far, live_site(**upstreams(far.url, timeout=0.1)) as (_, url):
        async with httpx.AsyncClient() as client:
            check_error(await client.post(url + CHAT_URL, json=GPT), 502, "upstream_timeout")
        await far.until(lambda: far.closed == 1)


@pytest.mark.parametrize("piece", [b'data: {"a":1}\n\n', b'data: {"a'])
async def test_a_stream_that_breaks_off_ends_with_an_error_and_done(piece: bytes) -> None:
    async with remote(streaming(piece, end=False)) as far, live_site(**upstreams(far.url)) as (_, url):
        async with httpx.AsyncClient() as client:
            answer = await client.post(url + CHAT_URL, json=GPT)
        assert answer.status_code == 200 and answer.content.startswith(piece)
        error, done = answer.text.removeprefix(piece.decode()).strip("\n").split("\n\n")
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "upstream_unreachable"
        assert done == "data: [DONE]" and answer.text.endswith("\n\n")


async def test_a_stream_that_falls_silent_ends_with_an_error_and_done() -> None:
    async def script(far: Remote, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(EVENTS_HEAD + chunk(b'data: {"a":1}\n\n'))
        await silence(far, reader, writer)

    async with remote(script) as far, live_site(**upstreams(far.url, timeout=0.1)) as (_, url):
        async with httpx.AsyncClient() as client:
            first, error, done = events((await client.post(url + CHAT_URL, json=GPT)).text)
        assert (first, error["error"]["code"], done) == ({"a": 1}, "upstream_timeout", "[DONE]")
        await far.until(lambda: far.closed == 1)


async def test_a_deadline_of_ours_ends_a_stream_of_theirs() -> None:
    async def script(far: Remote, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(EVENTS_HEAD + chunk(b'data: {"a":1}\n\n'))
        await silence(far, reader, writer)

    async with remote(script) as far, live_site(**upstreams(far.url)) as (_, url), httpx.AsyncClient() as client:
        answer = await client.post(url + CHAT_URL, json=GPT, headers={"x-request-timeout": "0.2"})
        assert events(answer.text)[1]["error"]["code"] == "request_timeout"
        bad = await client.post(url + CHAT_URL, json=GPT, headers={"x-request-timeout": "soon"})
        check_error(bad, 400, "invalid_value", "X-Request-Timeout")
        await far.until(lambda: far.open == 0)


async def test_an_answer_that_breaks_off_closes_the_connection() -> None:
    async def script(_remote: Remote, _reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"a"')
        await writer.drain()
        writer.transport.abort()

    async with remote(script) as far, live_site(**upstreams(far.url)) as (_, url), httpx.AsyncClient() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post(url + CHAT_URL, json=GPT)


async def hang_up(client: httpx.AsyncClient, *, after_a_byte: bool) -> None:
    async with client.stream("POST", CHAT_URL, json=GPT) as answer:
        if after_a_byte:
            await anext(answer.aiter_raw())


def many_connections(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, limits=httpx.Limits(max_connections=None))


async def left(server: Site, count: int) -> None:
    await server.exporter.until(lambda: len(server.exporter.http) == count)


async def test_hang_ups_in_mid_stream_close_the_connections_of_the_upstream() -> None:
    async def script(far: Remote, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(EVENTS_HEAD + chunk(b": begun\n\n"))
        await silence(far, reader, writer)

    async with (
        remote(script) as far,
        live_site(**upstreams(far.url)) as (server, url),
        many_connections(url) as client,
    ):
        await asyncio.gather(*(hang_up(client, after_a_byte=True) for _ in range(40)))
        await left(server, 40)
        await far.until(lambda: (far.open, far.closed) == (0, 40))


async def test_hang_ups_before_an_answer_leave_no_connection_and_no_place_taken() -> None:
    async with (
        remote(silence) as far,
        live_site(**upstreams(far.url, max_connections=5)) as (server, url),
        many_connections(url) as client,
    ):
        for round_number in (1, 2):
            calls = [asyncio.create_task(hang_up(client, after_a_byte=False)) for _ in range(20)]
            await far.until(lambda: far.open == 5)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await left(server, 20 * round_number)
            await far.until(lambda: far.open == 0)
        assert {stats.status for stats in server.exporter.http} == {499}
        assert server.context.lifecycle.idle.is_set()


async def test_a_circle_of_servers_is_refused_and_not_tried_again() -> None:
    port = free_port()
    back = live_site(**upstreams(f"http://127.0.0.1:{port}"))
    async with back as (_, url), live_site(port=port, **upstreams(url)) as (other, _), httpx.AsyncClient() as client:
        answer = await client.post(url + CHAT_URL, json=GPT)
        check_error(answer, 502, "upstream_loop")
        assert answer.headers["x-should-retry"] == "false"
        await other.exported()
        assert [stats.status for stats in other.exporter.http] == [502]
        models = (await client.get(f"{url}/v1/models")).json()
        assert [model["id"] for model in models["data"]] == ["fake"]


async def test_hops() -> None:
    async with (
        remote(answering(b"{}")) as far,
        live_site(**upstreams(far.url)) as (server, url),
        httpx.AsyncClient() as client,
    ):
        own = server.context.upstreams.instance
        for hops in ("a,b,c", f"x, {own}", "a, b,c,d"):
            refused = await client.post(url + CHAT_URL, json=GPT, headers={"x-openai-kv-hops": hops})
            check_error(refused, 502, "upstream_loop")
        assert far.received == []
        twice = [("x-openai-kv-hops", "a"), ("x-openai-kv-hops", "b")]
        assert (await client.post(url + CHAT_URL, json=GPT, headers=twice)).status_code == 200
        assert far.received[0].headers["x-openai-kv-hops"] == f"a, b, {own}"
        local = await client.post(url + CHAT_URL, json=CHAT, headers={"x-openai-kv-hops": "a,b,c,d"})
        assert local.status_code == 200


async def test_our_own_checks_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice")
    options: dict[str, Any] = {"server__max_body_bytes": 1000}
    key = {"authorization": "Bearer alice"}
    async with (
        remote(answering(b"{}")) as far,
        live_site(**upstreams(far.url), **options) as (server, url),
        httpx.AsyncClient(base_url=url) as client,
    ):
        check_error(await client.post(CHAT_URL, json=GPT), 401, "invalid_api_key")
        large = {**GPT, "x": "y" * 1000}
        check_error(await client.post(CHAT_URL, json=large, headers=key), 413, "body_too_large")
        check_error(await client.post(CHAT_URL, content=b"[]", headers=key), 400, "invalid_json")
        plain = {**key, "content-type": "text/plain"}
        check_error(await client.post(CHAT_URL, content=b"{}", headers=plain), 415, "unsupported_content_type")
        missing = await client.post(CHAT_URL, json={"messages": []}, headers=key)
        assert check_error(missing, 400, "empty_array", "messages")
        check_error(
            await client.post(CHAT_URL, json={**GPT, "model": "other"}, headers=key),
            404,
            "model_not_found",
            "model",
        )
        check_error(
            await client.post("/tokenize", json={"model": "gpt-x", "prompt": "a"}, headers=key),
            404,
            "model_not_found",
            "model",
        )
        server.context.lifecycle.drain_deadline = 0.0
        check_error(await client.post(CHAT_URL, json=GPT, headers=key), 503, "draining")
        assert far.received == []


async def test_requests_of_upstreams_go_on_while_the_model_loads_or_is_dead() -> None:
    async with (
        remote(answering(b'{"far":1}')) as far,
        live_site(**upstreams(far.url)) as (server, url),
        httpx.AsyncClient(base_url=url) as client,
    ):
        for state, code in ((EngineState.LOADING, "model_loading"), (EngineState.DEAD, "engine_dead")):
            server.engine.state = state
            assert (await client.post(CHAT_URL, json=GPT)).json() == {"far": 1}
            assert (await client.get("/v1/models/gpt-x")).json()["owned_by"] == "upstream"
            check_error(await client.post(CHAT_URL, json=CHAT), 503, code)
            check_error(await client.get("/v1/models"), 503, code)
        server.engine.state = EngineState.READY


async def test_what_is_left_when_the_server_shuts_down_is_cut() -> None:
    async with remote(silence) as far, live_site(**upstreams(far.url)) as (server, url), httpx.AsyncClient() as client:
        call = asyncio.create_task(client.post(url + CHAT_URL, json=GPT))
        await far.until(lambda: bool(far.received))
        assert server.context.lifecycle.cut() == 1
        check_error(await call, 503, "shutting_down")
        await far.until(lambda: far.closed == 1)
        assert server.context.lifecycle.cut() == 0


async def test_the_sdk_through_us() -> None:
    """Errors too: what the upstream says is what the SDK raises."""
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": word}}], "id": "1", "object": "chat.completion.chunk"}
        for word in ("so ", "far")
    ]
    stream = b"".join(f"data: {json.dumps(part)}\n\n".encode() for part in chunks) + b"data: [DONE]\n\n"

    async def script(far: Remote, reader: StreamReader, writer: StreamWriter) -> None:
        if far.received[-1].headers.get("authorization"):
            raise AssertionError("the key was passed on")
        if b'"stream":true' in far.received[-1].body.replace(b" ", b""):
            await streaming(stream)(far, reader, writer)
        else:
            error = {"error": {"message": "too many", "type": "t", "param": None, "code": "slow_down"}}
            await answering(json.dumps(error).encode(), "429 Too Many Requests")(far, reader, writer)

    async with (
        remote(script) as far,
        live_site(**upstreams(far.url)) as (_, url),
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        parts = await client.chat.completions.create(**GPT, stream=True)  # type: ignore[call-overload]
        assert "".join([part.choices[0].delta.content async for part in parts]) == "so far"
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**GPT)  # type: ignore[call-overload]
        assert caught.value.code == "slow_down"


async def test_the_log_says_what_a_502_came_from(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "openai_kv")
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with remote(answering(b"", "302 Found", location="/x")) as elsewhere, httpx.AsyncClient() as client:
        for target in (nowhere, elsewhere.url):
            async with live_site(**upstreams(target)) as (server, url):
                check_error(await client.post(url + CHAT_URL, json=GPT), 502, "upstream_unreachable")
                await server.exporter.until(lambda: len(server.exporter.http) == 1)
    ends = [message.partition("upstream=gpt-* ")[2] for message in caplog.messages if f"{CHAT_URL} 502" in message]
    assert ends[0].startswith("error=upstream_unreachable (ConnectError: ")
    assert ends[1:] == ["error=upstream_unreachable (The upstream of this model answers with a redirect.)"]
