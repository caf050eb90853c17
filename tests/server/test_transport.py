"""What only a real socket shows: hang-ups, slow readers, silence, a full queue."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx

from tests.server.serving import CHAT, Site, check_error, events, live_site

CHAT_PATH = "/v1/chat/completions"
LONG = {**CHAT, "max_tokens": 400}
RUNNING_USAGE = {"continuous_usage_stats": True}


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def wire_request(body: dict[str, Any], path: str) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


@asynccontextmanager
async def connection(url: str, body: dict[str, Any], path: str = CHAT_PATH) -> AsyncIterator[asyncio.StreamReader]:
    """A raw request, sent."""
    reader, writer = await asyncio.open_connection(*address(url))
    writer.write(wire_request(body, path))
    try:
        yield reader
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def aborted(server: Site, count: int, reason: str) -> None:
    await server.exporter.until(lambda: len(server.exporter.http) >= count)
    assert {stats.status for stats in server.exporter.http} == {499}
    assert server.exporter.aborts == [reason] * count
    server.runner.release()
    await server.settle()


async def test_hang_up_of_a_running_request_streaming_or_not() -> None:
    for stream in (False, True):
        async with live_site() as (server, url):
            server.runner.hold()
            async with connection(url, {**LONG, "stream": stream}):
                await server.step_entered()
            await aborted(server, 1, "disconnect")
            assert len(server.runner.inner.rows) <= 2


async def test_hang_up_during_a_pin_leaves_neither_reference_nor_pin() -> None:
    async with live_site() as (server, url):
        server.runner.hold()
        async with connection(url, {"prompt_token_ids": [1] * 40}, "/cache/pin"):
            await server.step_entered()
        await aborted(server, 1, "disconnect")
        assert await server.engine.pins() == []


async def test_hang_up_in_mid_stream() -> None:
    async with live_site() as (server, url):
        server.runner.hold()
        async with connection(url, {**LONG, "stream": True}) as reader:
            server.runner.allow(3)
            assert b'"role":"assistant"' in await reader.readuntil(b'"role":"assistant"')
        await aborted(server, 1, "disconnect")


async def test_hang_up_of_waiting_requests() -> None:
    async with live_site() as (server, url):
        server.runner.hold()
        async with connection(url, LONG):
            await server.step_entered()
            async with connection(url, LONG), connection(url, {**LONG, "stream": True}):
                await server.active(3)
            await server.exporter.until(lambda: len(server.exporter.http) == 2)
        await aborted(server, 3, "disconnect")


async def test_keep_alives_break_the_silence_before_and_between_tokens() -> None:
    async with live_site(server__sse_ping=0.02) as (server, url):
        server.runner.hold()
        async with connection(url, {**CHAT, "stream": True}) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"200 OK" in head and b"x-openai-kv-cache-hit-tokens" not in head
            await reader.readuntil(b": keep-alive\n\n")
            server.runner.allow()
            await reader.readuntil(b'"role"')
            await reader.readuntil(b": keep-alive\n\n")
            server.runner.release()
            await reader.readuntil(b"data: [DONE]\n\n")
        await server.settle()


async def test_an_answer_without_a_stream_gets_no_keep_alive() -> None:
    async with live_site(server__sse_ping=0.01) as (server, url), httpx.AsyncClient(base_url=url) as client:
        server.runner.hold()
        request = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await server.step_entered()
        await asyncio.sleep(0.05)
        server.runner.release()
        assert (await request).json()["usage"]["completion_tokens"] == 8


async def test_full_queue() -> None:
    async with live_site(server__max_queue=1) as (server, url), httpx.AsyncClient(base_url=url) as client:
        server.runner.hold()
        running = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await server.step_entered()
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await server.active(2)
        for stream in (False, True):
            refused = await client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
            assert check_error(refused, 429, "queue_full")["type"] == "rate_limit_error"
            assert 1 <= int(refused.headers["retry-after"]) <= 60
        assert server.exporter.rejected == ["max_num_queued_reqs"] * 2
        server.runner.release()
        assert (await running).status_code == (await waiting).status_code == 200
        await server.settle()


async def test_waiting_too_long() -> None:
    async with live_site(server__queue_timeout=0.1) as (server, url), httpx.AsyncClient(base_url=url) as client:
        server.runner.hold()
        running = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await server.step_entered()
        refused = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        check_error(refused, 429, "queue_timeout")
        assert refused.headers["retry-after"]
        server.runner.release()
        assert (await running).status_code == 200
        await server.settle()


async def test_waiting_requests_go_on_while_the_server_drains() -> None:
    async with live_site() as (server, url), httpx.AsyncClient(base_url=url) as client:
        server.runner.hold()
        running = asyncio.create_task(client.post("/v1/chat/completions", json=CHAT))
        await server.step_entered()
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "stream": True}))
        await server.active(2)
        server.context.lifecycle.drain_deadline = time.monotonic() + 30
        check_error(await client.post("/v1/chat/completions", json=CHAT), 503, "draining")
        assert not server.context.lifecycle.idle.is_set()
        server.runner.release()
        assert (await running).status_code == 200
        assert (await waiting).text.endswith("data: [DONE]\n\n")
        await server.context.lifecycle.idle.wait()
        await server.settle()


async def test_deadline() -> None:
    async with live_site() as (server, url), httpx.AsyncClient(base_url=url) as client:
        server.runner.hold()
        short = {"X-Request-Timeout": "0.1"}
        late = await client.post("/v1/chat/completions", json=CHAT, headers=short)
        assert check_error(late, 408, "request_timeout")["type"] == "timeout_error"
        assert late.headers["x-should-retry"] == "false"
        server.runner.allow(3)
        stream = await client.post("/v1/chat/completions", json={**LONG, "stream": True}, headers=short)
        first, *_, error, done = events(stream.text)
        assert stream.status_code == 200 and first["object"] == "chat.completion.chunk"
        assert error["error"]["code"] == "request_timeout" and done == "[DONE]"
        assert server.exporter.aborts == ["deadline", "deadline"]
        server.runner.release()
        await server.settle()


async def test_an_error_after_the_headers_is_the_last_event_but_done() -> None:
    async with live_site() as (server, url), httpx.AsyncClient(base_url=url) as client:
        server.runner.inner.fail_at = {4}
        response = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
        *_, error, done = events(response.text)
        assert (error["error"]["code"], done) == ("internal_error", "[DONE]")
        await server.settle()


async def test_a_slow_reader_is_aborted_and_delays_nobody() -> None:
    """Small buffers in the kernel, so that what the client leaves unread soon fills the server's."""
    slow = live_site(server__write_timeout=0.2, send_buffer=2048)
    async with slow as (server, url), httpx.AsyncClient(base_url=url) as client:
        loop = asyncio.get_running_loop()
        server.runner.hold()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            reader.setblocking(False)
            await loop.sock_connect(reader, address(url))
            body = {**LONG, "stream": True, "stream_options": RUNNING_USAGE}
            await loop.sock_sendall(reader, wire_request(body, CHAT_PATH))
            other = asyncio.create_task(client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 300}))
            await server.active(2)
            for _ in range(380):
                await server.step_entered()
                server.runner.allow()
            assert (await other).json()["usage"]["completion_tokens"] == 300
            await server.exporter.until(lambda: "slow_reader" in server.exporter.aborts)
        server.runner.release()
        await server.settle()
