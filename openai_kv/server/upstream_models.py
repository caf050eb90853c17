"""What an upstream's own GET /models lists, kept for a while."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

import httpx

from openai_kv.errors import RequestError, UpstreamError
from openai_kv.server.body import parse_object

Header = tuple[bytes, bytes]
Send = Callable[[str, str, Sequence[Header], bytes], Awaitable[httpx.Response]]
KEPT_SECONDS = 300
MAX_WAIT = 2
MAX_BYTES = 4 * 2**20


class ModelNames:
    """Asks when somebody wants to know; one question at a time."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._names: Sequence[str] = ()
        self._valid_until = 0.0
        self._lock = asyncio.Lock()

    async def get(self, hops: Header) -> Sequence[str]:
        """Within 2 s; none if the upstream doesn't say, so that it is asked again the next time."""
        try:
            async with asyncio.timeout(MAX_WAIT), self._lock:
                if time.monotonic() >= self._valid_until:
                    self._names = await self._ask(hops)
                    self._valid_until = time.monotonic() + KEPT_SECONDS
                return self._names
        except (TimeoutError, httpx.TransportError, RequestError):
            return ()

    async def _ask(self, hops: Header) -> Sequence[str]:
        headers = [(b"accept", b"application/json"), hops]
        async with aclosing(await self._send("GET", "/models", headers, b"")) as response:
            if response.status_code != 200:
                raise UpstreamError("The upstream has no list of models.")
            return parse_names(await read(response))


async def read(response: httpx.Response) -> bytes:
    """Raises UpstreamError if it is too long."""
    body = bytearray()
    async for data in response.aiter_raw():
        body += data
        if len(body) > MAX_BYTES:
            raise UpstreamError("The upstream's list of models is too long.")
    return bytes(body)


def parse_names(body: bytes) -> Sequence[str]:
    """Raises RequestError for what is no list of models."""
    entries = parse_object(body).get("data")
    if not isinstance(entries, list):
        raise UpstreamError("The upstream's list of models is no list.")
    names = (entry.get("id") for entry in entries if isinstance(entry, dict))
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name))
