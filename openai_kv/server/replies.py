"""What /v1/chat/completions and /v1/completions have in common: one JSON answer, or the same in chunks."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from openai_kv.outputs import RequestOutput
from openai_kv.request import TokenLogprobs
from openai_kv.server.call import Call
from openai_kv.server.envelope import encode
from openai_kv.server.generation import Batch, Generation
from openai_kv.server.logprobs import LogprobFormat
from openai_kv.server.parts import Part
from openai_kv.server.prompts import Prompt
from openai_kv.server.streaming import CHUNKS, Framing, framed
from openai_kv.server.usage import cache_headers, usage

T = TypeVar("T")
INLINE_ENTRIES = 256


class Reply:
    """The shape of an answer; subclasses say what a choice looks like.

    The engine's requests are `candidates` for each prompt, of which the `n` likeliest are the choices.
    """

    object: ClassVar[str]
    chunk_object: ClassVar[str]
    framing: Framing = CHUNKS

    def __init__(
        self, call: Call, body: Mapping[str, Any], reply_id: str, prompts: Sequence[Prompt], candidates: int
    ) -> None:
        self.body = body
        self.id = reply_id
        self.prompts = prompts
        self.format = LogprobFormat(call.context.get_tokenizer())
        self.return_token_ids = body.get("return_token_ids", False)
        self._candidates = candidates
        self._frame = {
            "created": call.exchange.created,
            "model": body["model"],
            "system_fingerprint": call.context.engine.info.fingerprint,
            **self.extras(),
        }
        self._head = encode({"id": reply_id, "object": self.chunk_object, **self._frame}).removesuffix(b"}") + b","
        self._parts: dict[int, Part] = defaultdict(Part)
        self._begun: set[int] = set()
        self._held: set[int] = set()
        self._prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
        options = body.get("stream_options", {})
        self._include_usage = options.get("include_usage", False)
        self._running_usage = options.get("continuous_usage_stats", False)

    def extras(self) -> dict[str, Any]:
        return {}

    def choice(self, index: int, part: Part) -> dict[str, Any]:
        raise NotImplementedError

    def chunk_choices(self, index: int, part: Part, first: bool) -> list[dict[str, Any]]:
        """What `part` can tell by now; what was told is to be cleared."""
        raise NotImplementedError

    def of_prompt(self) -> dict[str, Any]:
        """What an answer, or the first chunk, tells of its only prompt beside the choices."""
        return {}

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices, as far as they were added."""
        return 0

    def needs_prompt_logprobs(self) -> bool:
        """Whether no chunk can be made without."""
        return False

    def prompt_of(self, index: int) -> Prompt:
        return self.prompts[index // self._candidates]

    def prompt_logprobs(self, index: int) -> list[TokenLogprobs]:
        """Those of the prompt of request `index`."""
        return self._prompt_logprobs.get(index // self._candidates, [])

    def add(self, batch: Batch) -> None:
        for index, output in batch:
            self._parts[index].add(output)
            if output.prompt_logprobs:
                self._prompt_logprobs[index // self._candidates] = list(output.prompt_logprobs)

    @property
    def size(self) -> int:
        return sum(part.size for part in self._parts.values())

    def whole(self, last: Collection[RequestOutput]) -> dict[str, Any]:
        choices = [self.choice(chosen, self._parts[chosen]) for chosen in self._best()]
        choices = [{**choice, "index": index} for index, choice in enumerate(choices)]
        frame = {"id": self.id, "object": self.object, **self._frame}
        return {**frame, "choices": choices, "usage": self.usage(last), **self.of_prompt()}

    def usage(self, last: Collection[RequestOutput]) -> dict[str, Any]:
        return usage(last, self.reasoning_tokens)

    def _best(self) -> Iterable[int]:
        """The requests that are choices, prompt by prompt; where there are more than that, the likeliest first."""
        n: int = self.body.get("n", 1)
        for start in range(0, len(self._parts), self._candidates):
            group = range(start, start + self._candidates)
            ordered = group if n == self._candidates else sorted(group, key=lambda i: -self._parts[i].mean_logprob)
            yield from ordered[:n]

    def chunks(self, batch: Batch, last: Collection[RequestOutput]) -> bytes:
        """All events of one step."""
        self.add(batch)
        extra: dict[str, Any] = {"usage": None} if self._include_usage else {}
        if self._running_usage:
            extra = {"usage": self.usage(last)}
        touched = self._held.union(index for index, _ in batch)
        self._held = {index for index in touched if self._lacks_prompt(index)}
        return b"".join(self._events(index, extra) for index in sorted(touched - self._held))

    def _lacks_prompt(self, index: int) -> bool:
        if not self.needs_prompt_logprobs():
            return False
        return index // self._candidates not in self._prompt_logprobs and len(self.prompt_of(index).token_ids) > 1

    def _events(self, index: int, extra: Mapping[str, Any]) -> bytes:
        choices = self.chunk_choices(index, self._parts[index], index not in self._begun)
        once = {} if self._begun else self.of_prompt()
        self._begun.update([index] if choices else [])
        return b"".join(
            self._event([choice], {**extra, **(once if number == 0 else {})}) for number, choice in enumerate(choices)
        )

    def keep(self, content: bytes) -> None:
        """`content` is the whole answer, which nobody has seen yet."""

    def last_events(self, last: Collection[RequestOutput]) -> bytes:
        """Usage, if it is asked for."""
        return self._event([], {"usage": self.usage(last)}) if self._include_usage else b""

    def _event(self, choices: list[dict[str, Any]], extra: Mapping[str, Any]) -> bytes:
        """What all chunks begin with was written once: every token of every stream comes through here."""
        return framed(self._head + encode({"choices": choices, **extra})[1:])


async def collect(generation: Generation, reply: Reply) -> None:
    """One answer when all requests have ended."""
    async for batch in generation.batches():
        reply.add(batch)
    last = generation.last.values()
    content = await off_loop_if(reply.size > INLINE_ENTRIES, lambda: encode(reply.whole(last)))
    reply.keep(content)
    await generation.call.answer_bytes(content, cache_headers(last))


async def stream(generation: Generation, reply: Reply) -> None:
    """Events as they come, one send a step; then how it ended."""
    events = generation.call.open_stream(reply.framing)
    async for batch in generation.batches():
        last = generation.last.values()
        if not events.started and generation.prompts_started:
            events.headers |= cache_headers(last)
        large = sum(len(output.prompt_logprobs) for _, output in batch) > INLINE_ENTRIES
        if data := await off_loop_if(large, partial(reply.chunks, batch, last)):
            await events.send(data)
    await events.finish(reply.last_events(generation.last.values()))


async def off_loop_if(large: bool, work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work) if large else work()
