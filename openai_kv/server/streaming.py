"""Server-sent events over one ASGI exchange: headers with the first byte, keep-alives, `[DONE]` always last.

The framing is sse-starlette's, written out where it is hot. Its EventSourceResponse is not used: it sends headers
before there is any output, so that an early error could not be a plain HTTP error, and closes streams of its own accord
when the server drains.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sse_starlette import ServerSentEvent
from starlette.types import Send

from openai_kv.errors import RequestError
from openai_kv.server.envelope import SlowReader, encode, envelope

DONE = ServerSentEvent("[DONE]", sep="\n").encode()
KEEP_ALIVE = ServerSentEvent(comment="keep-alive", sep="\n").encode()
HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def event(payload: Mapping[str, Any], name: str | None = None) -> bytes:
    """With a `name`, one of ours, it has a line of its own for it."""
    line = framed(encode(payload))
    return line if name is None else b"event: " + name.encode() + b"\n" + line


def framed(payload: bytes) -> bytes:
    """JSON on one line as an event without a name."""
    return b"data: %b\n\n" % payload


@dataclass(frozen=True, slots=True)
class Framing:
    """How a stream tells of a failure, and what comes after everything else."""

    failure: Callable[[RequestError], bytes]
    done: bytes


CHUNKS = Framing(lambda error: event(envelope(error)), DONE)


class EventStream:
    """`headers` may be added to until the first byte leaves. Raises SlowReader if nothing can be sent for too long.

    One task sends outputs and another keep-alives; each message is whole events, and the lock keeps headers first.
    """

    def __init__(self, send: Send, write_timeout: float, arrival: float, framing: Framing = CHUNKS) -> None:
        self.framing = framing
        self.started = False
        self.headers: dict[str, str] = {}
        self.last_sent = arrival
        self._send = send
        self._write_timeout = write_timeout
        self._lock = asyncio.Lock()

    async def send(self, data: bytes, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(self._write_timeout), self._lock:
                await self._start()
                await self._send({"type": "http.response.body", "body": data, "more_body": more})
        except TimeoutError:
            raise SlowReader from None
        self.last_sent = time.monotonic()

    async def keep_alive(self) -> None:
        await self.send(KEEP_ALIVE)

    async def finish(self, data: bytes = b"") -> None:
        """The last events, if there are more, then `[DONE]` or what stands for it."""
        await self.send(data + self.framing.done, more=False)

    async def fail(self, error: RequestError) -> None:
        """The same after something went wrong."""
        await self.finish(self.framing.failure(error))

    async def _start(self) -> None:
        if self.started:
            return
        extra = [(name.encode(), value.encode("latin-1")) for name, value in self.headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *extra]})
        self.started = True
