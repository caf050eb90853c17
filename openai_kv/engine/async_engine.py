"""The engine as the event loop sees it: a stream of outputs for each request."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from enum import StrEnum
from typing import TypeVar

from openai_kv.cache.hit import ResetResult
from openai_kv.engine.admission import QueueLimits, WaitingRoom
from openai_kv.engine.engine import OWN_TIERS, Engine, EngineStats
from openai_kv.engine.engine_request import EngineRequest
from openai_kv.engine.engine_thread import EngineThread
from openai_kv.engine.output_stream import OutputStream
from openai_kv.engine.thread_calls import ThreadCalls
from openai_kv.errors import InternalError, OverloadedError, UnavailableError
from openai_kv.metrics import PinRecord
from openai_kv.outputs import ModelInfo, RequestOutput
from openai_kv.request import FinishReason, PinOrder, Request

logger = logging.getLogger(__name__)
T = TypeVar("T")
OnStarted = Callable[[Request], None]


class EngineState(StrEnum):
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class AsyncEngine:
    """Lives on the event loop that called `start`; only `abort` may come from any thread.

    `build(on_started)` runs in the engine thread and may take long; `on_started` is to be called with each request
    that has its first step.
    """

    def __init__(
        self,
        build: Callable[[OnStarted], Engine],
        limits: QueueLimits | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = EngineState.LOADING
        self.failure: BaseException | None = None
        self._limits = limits or QueueLimits()
        self._room = WaitingRoom(self._limits)
        self._thread = EngineThread(lambda: build(lambda request: self._room.leave(request.request_id)), self)
        self._clock = clock
        self._streams: dict[str, OutputStream] = {}
        self._calls = ThreadCalls(self._thread.submit)
        self._engine: Engine | None = None

    @property
    def info(self) -> ModelInfo:
        assert self._engine is not None, "the engine is still loading"
        return self._engine.runner.info

    @property
    def num_active(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def start(self) -> None:
        """Start loading; `settled` is set once the engine is ready or dead."""
        self._loop = asyncio.get_running_loop()
        self.settled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread.start()

    def reserve(self, requests: Sequence[EngineRequest]) -> None:
        """Take places in the queue for all sequences of one HTTP request, or for none; `abort` gives them back.

        Raises what `generate` does before its first output.
        """
        self._check_accepting()
        group = requests[0].group or requests[0].info.request_id
        self._room.enter(group, {request.info.request_id: request.num_queued_tokens for request in requests})

    async def generate(self, request: EngineRequest) -> AsyncGenerator[RequestOutput, None]:
        """Outputs, the last one with a finish reason. Raises before the first when overloaded, draining or dead.

        Leaving early does not end the request: call `abort`.
        """
        request_id = request.info.request_id
        if request_id not in self._room:
            self.reserve([request])
        self._check_accepting()
        stream = self._streams[request_id] = OutputStream()
        self._idle.clear()
        timer = self._loop.call_later(self._limits.queue_timeout, self._expire, request_id)
        try:
            sequence = request.begin(self._clock())
            self._add(sequence)
            while not stream.finished:
                yield await stream.get()
        finally:
            timer.cancel()

    def _add(self, sequence: Request) -> None:
        if self._engine is not None:
            self._engine.expect(sequence.request_id)
        self._thread.submit(lambda engine: engine.add(sequence))

    def abort(self, request_id: str) -> None:
        """End a request and free its blocks before the next step; harmless when it has ended."""
        self._room.leave(request_id)
        self._thread.submit(lambda engine: self.on_outputs(engine.abort(request_id)))

    async def stats(self) -> EngineStats:
        return await self.call(lambda engine: engine.stats())

    async def reset_cache(self, *, include_pinned: bool = False, tiers: Collection[str] = OWN_TIERS) -> ResetResult:
        return await self.call(lambda engine: engine.reset_cache(include_pinned=include_pinned, tiers=tiers))

    async def pin(self, order: PinOrder, namespace: str, prompt: Sequence[int]) -> PinRecord | None:
        """The pin of this order, None if `prompt` is to be computed first. Raises PinLimitError."""
        return await self.call(lambda engine: engine.pin(order, namespace, prompt))

    async def unpin(self, pin_id: str) -> bool:
        """False: there is no such pin."""
        return await self.call(lambda engine: engine.unpin(pin_id))

    def let_go(self, pin_id: str) -> None:
        """End a pin, if it was set, before the next step; nobody waits for it."""
        self._thread.submit(lambda engine: engine.unpin(pin_id))

    async def pins(self) -> list[PinRecord]:
        return await self.call(lambda engine: engine.pins())

    async def check_integrity(self) -> None:
        await self.call(lambda engine: engine.check_integrity())

    async def call(self, function: Callable[[Engine], T]) -> T:
        """The value of `function`, run in the engine thread between two steps."""
        if self.state is EngineState.DEAD:
            raise _dead()
        return await self._calls.make(function)

    def drain(self) -> None:
        """No new request from now on; what was accepted goes on."""
        if self.state is not EngineState.DEAD:
            self.state = EngineState.DRAINING

    async def join_idle(self) -> None:
        """Wait until no request is left."""
        await self._idle.wait()

    def cut(self) -> int:
        """End whatever is left with `shutting_down`; the number of requests that were cut."""
        requests = list(self._streams)
        for request_id in requests:
            self._fail(
                request_id, UnavailableError("The server is shutting down.", code="shutting_down", retry_after=5)
            )
        return len(requests)

    async def stop(self) -> None:
        """End the thread after its current step."""
        await asyncio.to_thread(self._thread.stop)

    # -- from the engine thread ----------------------------------------------------------------------------------

    def on_ready(self, engine: Engine) -> None:
        self._loop.call_soon_threadsafe(self._ready, engine)

    def on_outputs(self, outputs: Sequence[RequestOutput]) -> None:
        if outputs:
            self._loop.call_soon_threadsafe(self._receive, outputs)

    def on_dead(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._die, error)

    # -- on the event loop ---------------------------------------------------------------------------------------

    def _ready(self, engine: Engine) -> None:
        self._engine = engine
        if self.state is EngineState.LOADING:
            self.state = EngineState.READY
        self.settled.set()

    def _receive(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            self._deliver(output)
        if not self._streams:
            self._idle.set()

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finish_reason is FinishReason.ERROR:
            stream.fail(InternalError("The engine failed on this request."))
        else:
            stream.put(output)
        if output.finish_reason is not None:
            self._forget(output)

    def _forget(self, output: RequestOutput) -> None:
        del self._streams[output.request_id]
        self._room.leave(output.request_id)
        if self._engine is not None and output.queue_seconds is not None:
            seats = self._engine.scheduler.limits.max_num_seqs
            self._room.served((output.total_seconds - output.queue_seconds) / seats)

    def _check_accepting(self) -> None:
        if self.state is EngineState.DEAD:
            raise _dead()
        if self.state is EngineState.LOADING:
            raise UnavailableError("The model is still loading.", code="model_loading", retry_after=5)
        if self.state is EngineState.DRAINING:
            raise UnavailableError("The server takes no new requests: it is draining.", code="draining", retry_after=5)

    def _expire(self, request_id: str) -> None:
        if self._room.may_expire(request_id):
            wait = self._room.retry_after(1)
            self._fail(request_id, OverloadedError("Waited too long to start.", code="queue_timeout", retry_after=wait))

    def _fail(self, request_id: str, error: Exception) -> None:
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.fail(error)
            self.abort(request_id)

    def _die(self, error: BaseException) -> None:
        if self._engine is not None:  # else whoever waits for `settled` reports it; nobody does after Ctrl-C
            logger.critical("the engine thread ended", exc_info=error)
        self.state, self.failure = EngineState.DEAD, error
        for stream in self._streams.values():
            stream.fail(_dead())
        self._calls.fail(_dead())
        self._streams.clear()
        self._idle.set()
        self.settled.set()


def _dead() -> UnavailableError:
    return UnavailableError("The engine has stopped.", code="engine_dead", retry_after=60)
