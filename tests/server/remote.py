"""A scripted server on the loopback that plays an upstream: what it sends is up to the test, byte for byte."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Received:
    """One request: header names in lower case, all values of a name joined."""

    line: str
    headers: dict[str, str]
    body: bytes


Script = Callable[["Remote", StreamReader, StreamWriter], Awaitable[None]]


@dataclass
class Remote:
    """`closed` counts connections that the other side has closed; `open` those it has not."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    open: int = 0
    closed: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def note(self, received: Received) -> None:
        self.received.append(received)
        self.changed.set()


@asynccontextmanager
async def remote(script: Script) -> AsyncIterator[Remote]:
    """`script` runs for each request and may write what it likes; the connection stays open after it."""
    made = Remote()
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        made.open += 1
        with suppress(ConnectionError, asyncio.CancelledError):
            while request := await read_request(reader):
                made.note(request)
                await script(made, reader, writer)
        made.open, made.closed = made.open - 1, made.closed + 1
        made.changed.set()
        tasks.discard(task)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)
        await server.wait_closed()


async def read_request(reader: StreamReader) -> Received | None:
    """None when the other side has closed."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    line, *lines = head.strip().split("\r\n")
    headers: dict[str, str] = {}
    for name, _, value in (entry.partition(": ") for entry in lines):
        headers[name.lower()] = f"{headers[name.lower()]}, {value}" if name.lower() in headers else value
    return Received(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def answering(body: bytes, status: str = "200 OK", **headers: str) -> Script:
    """A whole answer with a length."""
    lines = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    data = f"HTTP/1.1 {status}\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body

    async def script(_remote: Remote, _reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return script


EVENTS_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def streaming(*pieces: bytes, end: bool = True) -> Script:
    """Events in these pieces, each sent on its own; without `end` the connection is reset after them."""

    async def script(_remote: Remote, _reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(EVENTS_HEAD)
        for piece in pieces:
            writer.write(chunk(piece))
            await writer.drain()
            await asyncio.sleep(0)
        if end:
            writer.write(b"0\r\n\r\n")
        else:
            writer.transport.abort()

    return script


async def silence(_remote: Remote, reader: StreamReader, _writer: StreamWriter) -> None:
    """Nothing, until the other side closes."""
    await reader.read()


async def reset(_remote: Remote, _reader: StreamReader, writer: StreamWriter) -> None:
    writer.transport.abort()
