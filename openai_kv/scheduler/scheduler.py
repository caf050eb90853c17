"""Decides each step's work: who runs, how many tokens, who waits, who is pushed back. After vLLM's scheduler."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from openai_kv.cache.manager import KVCacheManager
from openai_kv.drafting.drafter import Drafter
from openai_kv.drafting.rows import DraftRows
from openai_kv.metrics import CacheStats
from openai_kv.outputs import BlockSave, ModelRunnerOutput, SchedulerOutput
from openai_kv.request import FinishReason, Request, RequestStatus
from openai_kv.scheduler.admission import Admission
from openai_kv.scheduler.block_loads import BlockLoads
from openai_kv.scheduler.departure import Departure
from openai_kv.scheduler.herd import Herd
from openai_kv.scheduler.lookahead import Lookahead, PlannedRows
from openai_kv.scheduler.preemption import Preemption
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.queues import RequestQueues
from openai_kv.scheduler.request_blocks import RequestBlocks
from openai_kv.scheduler.reserved_slots import ReservedSlots
from openai_kv.scheduler.rows import Rows
from openai_kv.scheduler.sampled_tokens import SampledTokens
from openai_kv.scheduler.step_plan import StepPlan
from openai_kv.scheduler.stopping import OutputText, StopCheck
from openai_kv.tiers.tiers import Tiers


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """`max_num_batched_tokens` rows and `max_num_seqs` sequences a step; no sequence grows past `max_model_len`."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        assert 0 < self.max_num_seqs <= self.max_num_batched_tokens, "a decode row for every sequence must fit a step"


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that is planned while the one before it runs, which has to say the tokens that the rows begin with."""

    step: int
    rows: PlannedRows

    def filled(self, before: ModelRunnerOutput) -> SchedulerOutput:
        self.rows.fill(before.sampled_token_ids)
        return SchedulerOutput(self.step, tuple(self.rows.requests))


class Scheduler:
    """Owns the requests and, through the manager, their blocks. One thread; requests come and go between steps."""

    def __init__(
        self,
        manager: KVCacheManager,
        limits: SchedulerLimits,
        text: OutputText,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_started: Callable[[Request], None] | None = None,
        drafter: Drafter | None = None,
        tiers: Tiers | None = None,
    ) -> None:
        self.manager = manager
        self.limits = limits
        self.tiers = tiers or Tiers()
        self.awaits_tiers = False  # the latest step was empty for that
        self._clock = clock
        self._queues = queues = RequestQueues()
        self.waiting, self.running, self.ended = queues.waiting, queues.running, queues.ended
        self._drafter = drafter or Drafter((), float, 0)
        self._draft_rows = DraftRows(self._drafter, manager, limits.max_model_len)
        self._herd = Herd(self.running, manager.block_size)
        self._promotion = promotion = Promotion(self.tiers, manager, limits.max_num_batched_tokens, clock)
        reserved_slots = ReservedSlots(manager)
        self._rows = Rows(manager, reserved_slots)
        self._blocks = RequestBlocks(manager, promotion, reserved_slots)
        self._preemption = Preemption(queues, manager, promotion, self._blocks)
        self._loads = BlockLoads(manager, promotion, self._preemption)
        self._admission = Admission(queues, manager, promotion, self._herd, self._loads, self._rows, clock, on_started)
        self._departure = Departure(queues, manager, promotion, self._herd, self._blocks, self._drafter)
        stop_check = StopCheck(text, limits.eos_token_ids, limits.max_model_len)
        self._sampled_tokens = SampledTokens(manager, self._blocks, self._drafter, stop_check, self._departure)
        self._lookahead = Lookahead(
            queues, manager, self._drafter, self.tiers, limits.max_num_seqs, limits.max_model_len
        )
        self._step = 0
        self._updated = clock()  # when the latest step was taken in
        self._saves: tuple[BlockSave, ...] = ()  # of the step that is under way
        self._unreported_change = False

    @property
    def has_work(self) -> bool:
        """Also after a change between steps: as in vLLM an empty step then tells the exporters how things stand."""
        return bool(self._queues.by_id) or self._unreported_change or self.manager.has_saves

    @property
    def num_preemptions(self) -> int:
        return self._preemption.count

    @property
    def num_deferred(self) -> int:
        """Waiting requests that wait for blocks which another one computes."""
        return self._herd.num_waiting

    def add(self, request: Request) -> None:
        self._queues.add(request)
        self._promotion.look(request)

    def abort(self, request_id: str, reason: FinishReason = FinishReason.ABORT) -> Request | None:
        """End a request now, between two steps; what it computed stays cached. None: it has ended before."""
        request = self._queues.by_id.get(request_id)
        if request is not None:
            self._departure.finish(request, reason)
            self.report_soon()
        return request

    def cache_stats(self) -> CacheStats:
        """Of the cache and its tiers, between two steps; O(1)."""
        stats = self.manager.stats()
        return replace(stats, tiers=self.tiers.stats()) if self.tiers.threads else stats

    def clear_tiers(self, locations: Collection[str]) -> None:
        """Forget all blocks in the tiers of these locations, and what waiting requests were to get from any."""
        cleared = {number for number, location in enumerate(self.tiers.locations) if location in locations}
        if cleared:
            self._promotion.forget_waiting()
            self.manager.forget_tiers(cleared)
            self.tiers.clear(locations)

    def lose_saves(self) -> None:
        """The step failed: what it had not handed to the tiers yet is not there."""
        self.manager.lose_saves(self._saves)
        self._saves = ()

    def report_soon(self) -> None:
        """Something changed between two steps."""
        self._unreported_change = True

    # -- schedule ------------------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """The next step: running requests first, then waiting ones, each catching up as far as the budget goes."""
        self._step += 1
        self._unreported_change = False
        self.manager.expire()
        self.ended.clear()
        plan = StepPlan()
        self._promotion.advance()
        self._load(plan)
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
            self._add_drafts(plan)
        return self._output(plan)

    def _load(self, plan: StepPlan) -> None:
        for request in list(self.running) if self.tiers.threads else ():
            if request.status is RequestStatus.RUNNING:
                self._loads.take(request, plan, preempts=True)

    def _schedule_running(self, plan: StepPlan) -> None:
        decoding = sum(request.num_computed_tokens + 1 == len(request.token_ids) for request in self.running)
        plan.budget = self.limits.max_num_batched_tokens - decoding
        for request in list(self.running):
            missing = len(request.token_ids) - request.num_computed_tokens
            num_tokens = missing if missing == 1 else self._promotion.limit(request, min(missing, plan.budget))
            if request.status is not RequestStatus.RUNNING or num_tokens == 0:
                continue
            if self._preemption.make_room(request, request.num_computed_tokens + num_tokens, plan):
                plan.budget -= num_tokens if missing > 1 else 0
                plan.requests[request.request_id] = self._rows.of(request, num_tokens)

    def _schedule_waiting(self, plan: StepPlan) -> None:
        for request in list(self.waiting):
            if len(self.running) >= self.limits.max_num_seqs or plan.budget <= 0:
                return
            if not self._herd.must_wait(request) and not self._admission.admit(request, plan):
                return

    def _add_drafts(self, plan: StepPlan) -> None:
        chosen = self._draft_rows.choose(self.running, plan.requests, plan.budget)
        for request, drafts in chosen.items():
            plan.requests[request.request_id] = self._rows.of(request, 1, drafts=drafts)

    def _output(self, plan: StepPlan) -> SchedulerOutput:
        requests, loads = tuple(plan.requests.values()), plan.loads
        self._saves = self.manager.take_saves()
        self.awaits_tiers = not (requests or self._saves or loads) and self._promotion.has_news_to_come
        return SchedulerOutput(self._step, requests, tuple(plan.copies), self._clock(), self._saves, loads)

    # -- schedule ahead ------------------------------------------------------------------------------------------

    def plan_after(self, running: SchedulerOutput) -> PlannedStep | None:
        """The step that follows one that runs, as far as that can be known before it has ended; else None."""
        self.manager.expire()
        rows = None if running.copies or running.loads or running.saves else self._lookahead.after(running.requests)
        return None if rows is None else PlannedStep(running.step + 1, rows)

    def begin(self, planned: PlannedStep) -> SchedulerOutput:
        """In `schedule`'s place, once the step before was taken in: without the rows of requests that have ended."""
        self._step = planned.step
        self._unreported_change = False
        self.ended.clear()
        requests = tuple(item for item in planned.rows.requests if item.request_id in self._queues.by_id)
        return SchedulerOutput(planned.step, requests, time=self._updated)

    # -- update --------------------------------------------------------------------------------------------------

    def update_from_output(self, scheduled: SchedulerOutput, output: ModelRunnerOutput) -> list[Request]:
        """Take in what the step computed: append, stop, cache full blocks, free. The requests that it touched."""
        self.manager.record_attention(output.attention_mass)
        self.tiers.store(scheduled.saves, output.saved)
        self._saves, self._updated = (), self._clock()
        self._promotion.speed.observe(scheduled.num_tokens, self._updated - scheduled.time, scheduled.mean_context)
        updated = [self._queues.by_id[item.request_id] for item in scheduled.requests]
        for request, item in zip(updated, scheduled.requests, strict=True):
            self._blocks.cache(request, len(item.token_ids) - item.num_drafts)
            request.prompt_logprobs.extend(output.prompt_logprobs.get(request.request_id, ()))
            if request.request_id in output.pooled:
                request.pool(output.pooled[request.request_id])
            self._sampled_tokens.take(request, item, output)
        return updated
