"""The engine requests of one call: made, read together, and aborted if the call ends before they do."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from openai_kv.engine.engine_request import EngineRequest
from openai_kv.errors import InternalError, PermissionDeniedError
from openai_kv.metrics import GenerationStats
from openai_kv.outputs import RequestOutput
from openai_kv.request import RequestInfo, SamplingParams
from openai_kv.server.breakpoints import Place
from openai_kv.server.call import Call
from openai_kv.server.retention import retention
from openai_kv.server.telemetry import Timing, generation_stats

Batch = list[tuple[int, RequestOutput]]
STARTED_AT_ONCE = 64  # thousands would hold up everybody else's streams


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def session_of(call: Call, body: Mapping[str, Any]) -> str | None:
    """The hint of the contract: body, header, then cache key."""
    hint: str | None = body.get("session_id", call.headers.get("x-session-id", body.get("prompt_cache_key")))
    return hint


def cache_namespace(call: Call, body: Mapping[str, Any]) -> str:
    return call.authenticator.namespace(call.key, body.get("cache_salt"))


def engine_request(
    call: Call,
    body: Mapping[str, Any],
    *,
    request_id: str,
    group: str,
    kind: str,
    prompt: Sequence[int],
    params: SamplingParams,
    turn: int = 1,
    places: Sequence[Place] = (),
) -> EngineRequest:
    """`kind` as in RequestInfo; requests of one call share `group`. `places`: where breakpoints are."""
    info = RequestInfo(
        request_id=request_id,
        num_prompt_tokens=len(prompt),
        namespace=cache_namespace(call, body),
        session_id=session_of(call, body),
        kind=kind,
        turn=turn,
        retention=retention(call, body, len(prompt), places),
    )
    return EngineRequest(info, tuple(prompt), params, group, priority=priority_of(call, body))


def priority_of(call: Call, body: Mapping[str, Any]) -> int:
    """Raises PermissionDeniedError where the server sets no priorities."""
    priority: int = body.get("priority", 0)
    if priority and not call.context.settings.server.allow_priority:
        message = "Parameter 'priority' can't be set on this server."
        raise PermissionDeniedError(message, param="priority", code="priority_not_allowed")
    return priority


def choices_of(request: EngineRequest, count: int) -> list[EngineRequest]:
    """So many answers to one prompt; what is to be known of the prompt the first one finds out."""
    return [request, *(further_choice(request, choice) for choice in range(1, count))]


def further_choice(request: EngineRequest, choice: int) -> EngineRequest:
    info = replace(request.info, request_id=f"{request.info.request_id}-{choice}")
    return replace(request, info=info, params=replace(request.params, prompt_logprobs=None), choice=choice)


class Generation:
    """A context around everything a call does with its requests: on the way out, what still runs is aborted.

    `count_reasoning`: tokens of reasoning among those that have come. `told_reasons`: finish reasons by the index of
    the request, as far as the client was told others than the engine's.
    """

    def __init__(
        self,
        call: Call,
        body: Mapping[str, Any],
        requests: Sequence[EngineRequest],
        count_reasoning: Callable[[], int] = lambda: 0,
        told_reasons: Mapping[int, str] | None = None,
    ) -> None:
        self.call = call
        self.body = body
        self.requests = requests
        self.count_reasoning = count_reasoning
        self.told_reasons = {} if told_reasons is None else told_reasons
        self.last: dict[int, RequestOutput] = {}
        self._first_token: float | None = None
        self._latest = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        running = [request for index, request in enumerate(self.requests) if not self.is_finished(index)]
        for request in running:
            self.call.context.engine.abort(request.info.request_id)
        self.call.aborted = bool(running)
        self.call.exchange.generation = self.stats()

    def stats(self) -> GenerationStats:
        finished = all(map(self.is_finished, range(len(self.requests))))
        timing = Timing(self._first_token, self._latest if finished else self.seconds)
        model = self.call.context.served_as(self.body.get("model"))
        stats = generation_stats(self.body, model, self.requests, self.last, timing, self.told_reasons)
        return replace(stats, num_reasoning_tokens=self.count_reasoning())

    @property
    def seconds(self) -> float:
        """Since the call arrived."""
        return time.monotonic() - self.call.exchange.arrival

    def is_finished(self, index: int) -> bool:
        return index in self.last and self.last[index].finish_reason is not None

    @property
    def prompts_started(self) -> bool:
        """Whether it is known of each prompt what the cache held of it."""
        first = (index for index, request in enumerate(self.requests) if request.choice == 0)
        return all(index in self.last for index in first)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Outputs with the index of their request, as they come; ends when all requests have ended."""
        self.call.context.engine.reserve(self.requests)
        generators = [self.call.context.engine.generate(request) for request in self.requests]
        source = alone(generators[0]) if len(generators) == 1 else together(generators)
        async with aclosing(source):
            async for batch in source:
                self.last.update(batch)
                self._latest = self.seconds
                if self._first_token is None and any(output.token_ids for _, output in batch):
                    self._first_token = self._latest
                yield batch
        if not all(map(self.is_finished, range(len(self.requests)))):
            raise InternalError("The engine ended this request early.")


async def alone(outputs: AsyncGenerator[RequestOutput, None]) -> AsyncGenerator[Batch, None]:
    async with aclosing(outputs):
        async for output in outputs:
            yield [(0, output)]


async def together(generators: Sequence[AsyncGenerator[RequestOutput, None]]) -> AsyncGenerator[Batch, None]:
    """All generators at once; the first error of any ends it."""
    ready: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue(len(generators))
    tasks: list[asyncio.Task[None]] = []
    running = len(generators)
    try:
        for index, outputs in enumerate(generators):
            tasks.append(asyncio.create_task(pump(index, outputs, ready)))
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)
        while running:
            items = [await ready.get()]
            items += [ready.get_nowait() for _ in range(ready.qsize())]
            running -= items.count(None)
            if batch := checked(items):
                yield batch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def checked(items: Iterable[tuple[int, RequestOutput] | Exception | None]) -> Batch:
    batch: Batch = []
    for item in items:
        if isinstance(item, Exception):
            raise item
        if item is not None:
            batch.append(item)
    return batch


async def pump(
    index: int,
    outputs: AsyncGenerator[RequestOutput, None],
    ready: "asyncio.Queue[tuple[int, RequestOutput] | Exception | None]",
) -> None:
    try:
        async with aclosing(outputs):
            async for output in outputs:
                await ready.put((index, output))
    except Exception as error:
        await ready.put(error)
    else:
        await ready.put(None)
