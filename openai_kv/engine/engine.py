"""The engine, a step at a time: begin, run, update, report. After nano-vllm's `LLMEngine.step`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from openai_kv.cache.hit import ResetResult
from openai_kv.cache.pin import Pin
from openai_kv.cache.snapshot import Snapshot
from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.engine.reporter import Reporter
from openai_kv.engine.steps import Steps, StepsInTurn
from openai_kv.metrics import CacheStats, PinRecord
from openai_kv.outputs import ModelRunner, RequestOutput
from openai_kv.request import FinishReason, PinOrder, Request
from openai_kv.scheduler.scheduler import Scheduler

OWN_TIERS = ("device", "host", "disk")
ALL_TIERS = (*OWN_TIERS, "remote")  # what is remote other servers may share


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine between two steps. `attention_read_bytes` of K and V, in all steps so far."""

    cache: CacheStats
    running: int
    waiting: int
    preemptions: int
    attention_read_bytes: int


class Engine:
    """Owned by one thread; requests come and go between steps."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        detokenizer: Detokenizer,
        reporter: Reporter,
        steps: Steps | None = None,
    ) -> None:
        """`steps`: of this scheduler and this runner; None: in turn."""
        self.scheduler = scheduler
        self.runner = runner
        self._detokenizer = detokenizer
        self._reporter = reporter
        self.steps = steps or StepsInTurn(scheduler, runner)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    @property
    def awaits_tiers(self) -> bool:
        """The latest step had nothing to do but to wait for them."""
        return self.scheduler.awaits_tiers

    def wake_with(self, wake: Callable[[], None]) -> None:
        """`wake` is called, in any thread, when a tier has news."""
        self.scheduler.tiers.wake = wake

    def close(self) -> None:
        """The last call; it takes a few seconds at most."""
        self.steps.close()
        self.scheduler.tiers.close()

    def expect(self, request_id: str) -> None:
        """Before `add`, so that the next step to begin has it already. Any thread."""
        self.steps.expect(request_id)

    def add(self, request: Request) -> None:
        self._detokenizer.add(request)
        self.scheduler.add(request)
        self.steps.arrived(request.request_id)

    def step(self) -> list[RequestOutput]:
        """Run one step; what it added to each request that sampled or ended."""
        step = self.steps.begin()
        output = step.output()
        updated = self.scheduler.update_from_output(step.scheduled, output)
        return self._reporter.report(self.scheduler, step.scheduled, output, updated)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> list[RequestOutput]:
        """End a request between two steps; empty if it has ended before."""
        request = self.scheduler.abort(request_id, reason)
        return [] if request is None else [self._reporter.request_output(request)]

    def fail_running(self) -> list[RequestOutput]:
        """After a step that raised: end whatever was running, so that the waiting requests get their chance.

        Where nothing ran it was the oldest waiting one that could not be scheduled: it ends, or it would fail for ever.
        What ended in that very step has not been reported yet.
        """
        self.steps.drop()
        self.scheduler.lose_saves()
        unreported = list(self.scheduler.ended)
        failed = list(self.scheduler.running) or list(self.scheduler.waiting)[:1]
        for request in failed:
            self.scheduler.abort(request.request_id, FinishReason.ERROR)
        return [self._reporter.failed_output(request) for request in (*unreported, *failed)]

    def stats(self) -> EngineStats:
        scheduler = self.scheduler
        scheduler.manager.expire()
        return EngineStats(
            scheduler.cache_stats(),
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.num_preemptions,
            self._reporter.attention_read_bytes,
        )

    def reset_cache(self, *, include_pinned: bool = False, tiers: Collection[str] = OWN_TIERS) -> ResetResult:
        """Forget what the KV pool (device) and the cache tiers of these locations hold."""
        self.scheduler.report_soon()
        self.scheduler.clear_tiers(tiers)
        if "device" not in tiers:
            return ResetResult(0, 0)
        return self.scheduler.manager.reset(include_pinned=include_pinned)

    def pin(self, order: PinOrder, namespace: str, prompt: Sequence[int]) -> PinRecord | None:
        """The pin of this order, None if `prompt` is to be computed first. Raises PinLimitError."""
        self.scheduler.manager.expire()
        pin = self.scheduler.manager.pins.pin(order, namespace, prompt)
        if pin is None:
            return None
        self.scheduler.report_soon()
        return self._record(pin)

    def unpin(self, pin_id: str) -> bool:
        """False: there is no such pin."""
        self.scheduler.report_soon()
        return self.scheduler.manager.pins.unpin(pin_id)

    def pins(self) -> list[PinRecord]:
        return [self._record(pin) for pin in self.scheduler.manager.pins.list()]

    def snapshot(self) -> Snapshot:
        """To be read at once, in the engine's thread."""
        self.scheduler.manager.expire()
        return self.scheduler.manager.snapshot

    def _record(self, pin: Pin) -> PinRecord:
        epoch = self.scheduler.manager.epoch
        return PinRecord(
            pin_id=pin.pin_id,
            label=pin.label,
            num_tokens=pin.num_tokens,
            num_blocks=pin.block.depth + 1,
            num_cached_tokens=pin.num_cached_tokens,
            created=int(epoch + pin.created),
            expires_at=int(epoch + pin.expires_at),
            hits=pin.hits,
        )

    def check_integrity(self) -> None:
        self.scheduler.manager.check_integrity()
