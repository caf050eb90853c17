"""An upstream's answer on its way to the client, byte for byte."""

import httpx

from openai_kv.server.call import Call
from openai_kv.server.streaming import EventStream, Framing

RETURNED = frozenset(
    {b"content-type", b"content-length", b"content-encoding", b"retry-after", b"retry-after-ms", b"x-should-retry"}
)
PREFIXES = (b"openai-", b"x-ratelimit-")


class Relay(EventStream):
    """Nothing of ours is in it, no keep-alive either, until the upstream fails in the middle of events."""

    def __init__(self, call: Call, response: httpx.Response, framing: Framing) -> None:
        super().__init__(call.send, call.context.settings.server.write_timeout, call.exchange.arrival, framing)
        self._response = response
        self._is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._tail = b""

    async def pass_on(self) -> None:
        """Raises httpx.TransportError when the upstream fails, SlowReader when the client does not read."""
        await self.send(b"")  # the headers, as early as they came
        async for data in self._response.aiter_raw():
            self._tail = (self._tail + data)[-4:]
            await self.send(data)
        await self.send(b"", more=False)

    async def keep_alive(self) -> None:
        """The upstream's business."""

    async def finish(self, data: bytes = b"") -> None:
        """Events end with an error and `[DONE]`; other answers stay incomplete: uvicorn closes the connection."""
        if self._is_events:
            await self.send(self._gap() + data + self.framing.done, more=False)

    def _gap(self) -> bytes:
        """What ends the event that was cut, if one was."""
        whole = not self._tail or self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))
        return b"" if whole else b"\n\n"

    async def _start(self) -> None:
        if not self.started:
            start = {"status": self._response.status_code, "headers": returned_headers(self._response)}
            await self._send({"type": "http.response.start", **start})
            self.started = True


def returned_headers(response: httpx.Response) -> list[tuple[bytes, bytes]]:
    """Those the contract lets through. The id is the upstream's name for what our own `x-request-id` names."""
    named = [(name.lower(), value) for name, value in response.headers.raw]
    kept = [(name, value) for name, value in named if name in RETURNED or name.startswith(PREFIXES)]
    return kept + [(b"x-upstream-request-id", value) for name, value in named if name == b"x-request-id"]
