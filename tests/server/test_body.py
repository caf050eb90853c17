import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from openai_kv.errors import RequestError
from openai_kv.server.body import parse_object
from tests.server.serving import CHAT, check_error, live_site, site

JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"text"',
        b"null",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'{"a": "\\ud800"}',
        b'{"a": ' + b"[" * 64 + b"]" * 64 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"a": 1e999}',
        b'{"a": -1e999}',
    ],
)
def test_what_is_not_a_json_object(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(body)
    assert (caught.value.code, caught.value.param) == ("invalid_json", None)


def test_what_is_one() -> None:
    deepest = b'{"a": ' + b"[" * 63 + b"]" * 63 + b"}"
    assert parse_object(deepest)
    assert parse_object(b'{"a": 1, "a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


async def test_malformed_json_is_a_400_of_ours() -> None:
    async with site() as server:
        response = await server.client.post("/v1/chat/completions", content=b'{"model": ', headers=JSON)
        error = check_error(response, 400, "invalid_json")
        assert error["type"] == "invalid_request_error"


async def test_content_types() -> None:
    async with site() as server:
        for headers in ({"content-type": "text/plain"}, {**JSON, "content-encoding": "gzip"}):
            response = await server.client.post("/tokenize", content=b'{"prompt": "a"}', headers=headers)
            check_error(response, 415, "unsupported_content_type")
        for headers in ({}, {"content-type": "Application/JSON; charset=utf-8"}):
            response = await server.client.post("/tokenize", content=b'{"prompt": "a"}', headers=headers)
            assert response.status_code == 200


async def test_a_large_body_is_read_off_the_event_loop_and_too_large_a_one_is_refused() -> None:
    async with site(server__max_body_bytes=200_000) as server:
        large = {"prompt": "x" * 150_000}
        assert (await server.post("/tokenize", large)).json()["count"] == 150_000
        error = check_error(await server.post("/tokenize", {"prompt": "x" * 250_000}), 413, "body_too_large")
        assert "200000" in error["message"]


async def test_ten_megabytes_on_the_wire_with_and_without_a_length() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b"x" * 2**20

    async with live_site() as (_, url), httpx.AsyncClient(base_url=url) as client:
        for content in (b"x" * 10 * 2**20, chunks()):
            response = await client.post("/v1/chat/completions", content=content, headers=JSON)
            check_error(response, 413, "body_too_large")
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_a_body_that_does_not_arrive() -> None:
    async with live_site(server__body_timeout=0.05) as (_, url):
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"body_timeout"' in answer and b"connection: close" in answer
        writer.close()
        await writer.wait_closed()


async def test_a_client_that_leaves_before_its_body_arrived() -> None:
    async with live_site() as (server, url):
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await server.exporter.until(lambda: len(server.exporter.http) == 1)
        assert server.exporter.http[0].status == 499
        assert server.exporter.aborts == []
