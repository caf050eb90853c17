"""What /v1/chat/completions and /v1/completions have in common: one JSON answer, or the same in chunks."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from openai_kv.outputs import RequestOutput
from openai_kv.server.call import Call
from openai_kv.server.generation import Batch, Generation
from openai_kv.server.streaming import event
from openai_kv.server.usage import cache_headers, usage


class Reply:
    """The shape of an answer; subclasses say what a choice looks like. `last`: the latest output of each request."""

    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, call: Call, body: Mapping[str, Any], reply_id: str) -> None:
        self.body = body
        self.id = reply_id
        self._frame = {
            "created": call.exchange.created,
            "model": body["model"],
            "system_fingerprint": call.context.engine.info.fingerprint,
            **self.extras(),
        }
        self._begun: set[int] = set()
        options = body.get("stream_options", {})
        self._include_usage = options.get("include_usage", False)
        self._running_usage = options.get("continuous_usage_stats", False)

    def extras(self) -> dict[str, Any]:
        return {}

    def saw(self, batch: Batch) -> None:
        """Called with all outputs, as they come."""

    @property
    def reasoning_tokens(self) -> int:
        return 0

    def choice(self, index: int, text: str, last: RequestOutput) -> dict[str, Any]:
        raise NotImplementedError

    def chunk_choices(self, index: int, output: RequestOutput, first: bool) -> list[dict[str, Any]]:
        raise NotImplementedError

    def whole(self, texts: Mapping[int, str], last: Mapping[int, RequestOutput]) -> dict[str, Any]:
        choices = [self.choice(index, texts[index], last[index]) for index in sorted(last)]
        frame = {"id": self.id, "object": self.object, **self._frame}
        return {**frame, "choices": choices, "usage": usage(last.values(), self.reasoning_tokens)}

    def chunks(self, batch: Batch, last: Collection[RequestOutput]) -> bytes:
        """All events of one step."""
        choices = [choice for index, output in batch for choice in self._choices(index, output)]
        extra: dict[str, Any] = {"usage": None} if self._include_usage else {}
        if self._running_usage:
            extra = {"usage": usage(last, self.reasoning_tokens)}
        return b"".join(self._event([choice], extra) for choice in choices)

    def usage_chunk(self, last: Collection[RequestOutput]) -> bytes:
        return self._event([], {"usage": usage(last, self.reasoning_tokens)}) if self._include_usage else b""

    def _choices(self, index: int, output: RequestOutput) -> list[dict[str, Any]]:
        first = index not in self._begun
        self._begun.add(index)
        return self.chunk_choices(index, output, first)

    def _event(self, choices: list[dict[str, Any]], extra: Mapping[str, Any]) -> bytes:
        return event({"id": self.id, "object": self.chunk_object, **self._frame, "choices": choices, **extra})


async def collect(generation: Generation, reply: Reply) -> None:
    """One answer when all requests have ended."""
    texts: dict[int, str] = defaultdict(str)
    async for batch in generation.batches():
        reply.saw(batch)
        for index, output in batch:
            texts[index] += output.text
    last = generation.last
    await generation.call.answer(reply.whole(texts, last), cache_headers(last.values()))


async def stream(generation: Generation, reply: Reply) -> None:
    """Events as they come, one send a step; then `[DONE]`."""
    events = generation.call.open_stream()
    async for batch in generation.batches():
        if len(generation.last) == len(generation.requests):
            events.headers |= cache_headers(generation.last.values())
        reply.saw(batch)
        if data := reply.chunks(batch, generation.last.values()):
            await events.send(data)
    await events.finish(reply.usage_chunk(generation.last.values()))
