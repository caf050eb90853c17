"""Events of a stream of /v1/responses: named, numbered, and without `[DONE]`."""

from collections.abc import Iterable

from openai_kv.errors import RequestError
from openai_kv.server.envelope import envelope
from openai_kv.server.responses.output_items import Payload
from openai_kv.server.streaming import Framing, event


class EventWriter:
    """Numbers events; `number` is that of the next one."""

    def __init__(self) -> None:
        self.number = 0

    def write(self, payloads: Iterable[Payload]) -> bytes:
        return b"".join(map(self._one, payloads))

    def _one(self, payload: Payload) -> bytes:
        numbered = {**payload, "sequence_number": self.number}
        self.number += 1
        return event(numbered, payload["type"])


def broken(error: RequestError) -> bytes:
    """The last event of an upstream's stream that broke off, as OpenAI's; `error` is what the SDK raises."""
    inner = envelope(error)["error"]
    told = {name: inner[name] for name in ("code", "message", "param")}
    return event({"type": "error", "sequence_number": 0, **told, "error": inner}, "error")


OF_UPSTREAMS = Framing(broken, b"")
