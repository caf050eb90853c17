"""Decides each step's work: who runs, how many tokens, who waits, who is pushed back. After vLLM's scheduler."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from openai_kv.cache.hit import CacheHit
from openai_kv.cache.manager import NOTHING, KVCacheManager
from openai_kv.drafting.drafter import Drafter
from openai_kv.drafting.rows import DraftRows
from openai_kv.metrics import CacheStats
from openai_kv.outputs import BlockLoad, BlockSave, ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from openai_kv.request import FinishReason, Pooling, Request, RequestStatus
from openai_kv.scheduler.departure import Departure
from openai_kv.scheduler.herd import Herd
from openai_kv.scheduler.preemption import Preemption
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.queues import RequestQueues
from openai_kv.scheduler.request_blocks import RequestBlocks
from openai_kv.scheduler.reserved_slots import ReservedSlots
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
        self._queues = RequestQueues()
        self.waiting, self.running, self.ended = self._queues.waiting, self._queues.running, self._queues.ended
        self._promotion = Promotion(self.tiers, manager, limits.max_num_batched_tokens, clock)
        self._herd = Herd(self.running, manager.block_size)
        self._reserved_slots = ReservedSlots(manager)
        self._blocks = RequestBlocks(manager, self._promotion, self._reserved_slots)
        self._preemption = Preemption(self._queues, manager, self._promotion, self._blocks)
        self._drafter = drafter or Drafter((), float, 0)
        self._draft_rows = DraftRows(self._drafter, manager, limits.max_model_len)
        self._departure = Departure(self._queues, manager, self._blocks, self._promotion, self._herd, self._drafter)
        self._stop_check = StopCheck(text, limits.eos_token_ids, limits.max_model_len)
        self._clock = clock
        self._on_started = on_started
        self._step = 0
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
        for request in list(self.running) if self.tiers.threads else ():
            if request.status is RequestStatus.RUNNING:
                self._promote(request, plan, preempts=True)
        decoding = sum(request.num_computed_tokens + 1 == len(request.token_ids) for request in self.running)
        plan.budget = self.limits.max_num_batched_tokens - decoding
        self._schedule_running(plan)
        if not plan.preempted:
            self._schedule_waiting(plan)
            self._add_drafts(plan)
        saves, loads = self.manager.take_saves(), plan.loads
        self._saves = saves
        self.awaits_tiers = not (plan.requests or saves or loads) and self._promotion.has_news_to_come
        return SchedulerOutput(
            self._step, tuple(plan.requests.values()), tuple(plan.copies), self._clock(), saves, loads
        )

    def _promote(self, request: Request, plan: StepPlan, *, preempts: bool = False) -> None:
        """Take what has arrived from the tiers for a running request, and go on behind it where it closes the gap."""
        loads, end = self._loads(request), self._promotion.meeting(request)
        if end is not None and self._jump(request, end, plan, preempts=preempts):
            loads += self._window_loads(request)
        else:
            end = request.num_computed_tokens
        if loads:
            plan.load(request, loads)
        request.num_computed_tokens = end

    def _loads(self, request: Request) -> list[BlockLoad]:
        """What has arrived, but for its parts in the window group: those have no place before the gap is closed."""
        loaded, who = self._promotion.take(request), request.request_id
        for each in loaded:
            has_full, has_window = each.full is not None, each.window is not None
            self.manager.came_from(who, each.index, each.tier, full=has_full, window=has_window)
        table, size = self.manager.block_ids(who) if loaded else [], self.manager.block_size
        full = [(each.index, each.full) for each in loaded if each.full is not None]
        return [BlockLoad(table[index], payload, position=index * size) for index, payload in full]

    def _window_loads(self, request: Request) -> list[BlockLoad]:
        table = self.manager.window_block_ids(request.request_id)
        parts = self._promotion.meet(request)
        return [BlockLoad(table[index], payload, windowed=True) for index, payload in parts.items()]

    def _jump(self, request: Request, num_tokens: int, plan: StepPlan, *, preempts: bool) -> bool:
        if preempts:
            return self._preemption.jump(request, num_tokens, plan)
        return self.manager.jump(request.request_id, num_tokens)

    def _schedule_running(self, plan: StepPlan) -> None:
        for request in list(self.running):
            missing = len(request.token_ids) - request.num_computed_tokens
            num_tokens = missing if missing == 1 else self._promotion.limit(request, min(missing, plan.budget))
            if request.status is not RequestStatus.RUNNING or num_tokens == 0:
                continue
            if self._preemption.make_room(request, request.num_computed_tokens + num_tokens, plan):
                plan.budget -= num_tokens if missing > 1 else 0
                plan.requests[request.request_id] = self._rows(request, num_tokens)

    def _schedule_waiting(self, plan: StepPlan) -> None:
        for request in list(self.waiting):
            if len(self.running) >= self.limits.max_num_seqs or plan.budget <= 0:
                return
            if not self._herd.must_wait(request) and not self._admit(request, plan):
                return

    def _admit(self, request: Request, plan: StepPlan) -> bool:
        """Give a waiting request its blocks and first rows; False: the pool is full, and nobody may overtake."""
        reads = not request.lacks_prompt_logprobs
        hit = self.manager.lookup(request.token_ids, request.info) if reads else NOTHING
        if reads and (self._herd.defer(request, hit.num_tokens) or self._promotion.must_wait(request, hit)):
            return True
        may_grow = self._promotion.may_add_to(request)
        count = request.choice == 0 and request.num_cached_tokens is None and not may_grow
        # A block to grow for each that runs, or the newcomer would be preempted as soon as one of them needs it.
        spare = len(self.running)
        num_tokens = min(len(request.token_ids) - hit.num_tokens, plan.budget)
        end = hit.num_tokens + num_tokens
        copies = self.manager.admit(
            request.info, hit, len(request.token_ids), count=count, spare=spare, window_tokens=end
        )
        if copies is None:
            return False
        plan.copies.extend(copies)
        self._start(request, hit, may_grow=may_grow)
        self._promote(request, plan)
        missing = len(request.token_ids) - request.num_computed_tokens
        num_tokens = self._promotion.limit(request, min(missing, plan.budget))
        if not self.manager.allocate_slots(request.request_id, request.num_computed_tokens + num_tokens):
            num_tokens = 0  # what it got from the tiers takes the room: later, when others may have to make way
        plan.budget -= num_tokens
        if num_tokens or not missing:
            plan.requests[request.request_id] = self._rows(request, num_tokens, hit.hidden_slot)
        return True

    def _start(self, request: Request, hit: CacheHit, *, may_grow: bool) -> None:
        self._queues.start(request)
        request.num_computed_tokens = hit.num_tokens
        self._promotion.admitted(request, hit)
        if request.num_cached_tokens is None and not may_grow:
            request.num_cached_tokens = hit.num_tokens
            request.hit_kind = hit.kind
        if request.first_scheduled_time is None:
            request.first_scheduled_time = self._clock()
            if self._on_started is not None:
                self._on_started(request)

    def _add_drafts(self, plan: StepPlan) -> None:
        chosen = self._draft_rows.choose(self.running, plan.requests, plan.budget)
        for request, drafts in chosen.items():
            plan.requests[request.request_id] = self._rows(request, 1, drafts=drafts)

    def _rows(
        self, request: Request, num_tokens: int, hidden_slot: int | None = None, *, drafts: Sequence[int] = ()
    ) -> ScheduledRequest:
        start = request.num_computed_tokens
        complete = start + num_tokens == len(request.token_ids)
        return ScheduledRequest(
            request_id=request.request_id,
            token_ids=[*request.token_ids[start : start + num_tokens], *drafts],
            num_computed_tokens=start,
            block_ids=self.manager.block_ids(request.request_id),
            samples=complete and request.params.max_tokens > 0,
            params=request.params,
            seed=request.seed,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            hidden_slot=hidden_slot,
            store_slot=self._reserved_slots.reserve(request) if complete and num_tokens else None,
            choice=request.choice,
            prompt_logprobs=request.params.prompt_logprobs if request.lacks_prompt_logprobs else None,
            constraint=request.constraint,
            pooling=request.params.pooling if complete or request.params.pooling is Pooling.MEAN else None,
            window_block_ids=self.manager.window_block_ids(request.request_id),
            num_drafts=len(drafts),
        )

    # -- update --------------------------------------------------------------------------------------------------

    def update_from_output(self, scheduled: SchedulerOutput, output: ModelRunnerOutput) -> list[Request]:
        """Take in what the step computed: append, stop, cache full blocks, free. The requests that it touched."""
        self.manager.record_attention(output.attention_mass)
        self.tiers.store(scheduled.saves, output.saved)
        self._saves = ()
        self._promotion.speed.observe(scheduled.num_tokens, self._clock() - scheduled.time, scheduled.mean_context)
        updated = [self._queues.by_id[item.request_id] for item in scheduled.requests]
        for request, item in zip(updated, scheduled.requests, strict=True):
            self._blocks.cache(request, len(item.token_ids) - item.num_drafts)
            request.prompt_logprobs.extend(output.prompt_logprobs.get(request.request_id, ()))
            if request.request_id in output.pooled:
                request.pool(output.pooled[request.request_id])
            self._take(request, item, output)
        return updated

    def _take(self, request: Request, item: ScheduledRequest, output: ModelRunnerOutput) -> None:
        """The tokens that it said, up to its end."""
        token_ids = output.sampled_token_ids.get(request.request_id, ())
        logprobs = output.logprobs.get(request.request_id, ())
        self._drafter.observe(request.request_id, token_ids)
        for index, token_id in enumerate(token_ids):
            if index:
                self._blocks.cache(request, 1)  # the draft before this token was right, so its K and V are
            request.logprobs.extend(logprobs[index : index + 1])
            self._append(request, token_id)
            if request.finish_reason is not None:
                return
        if item.num_drafts:
            self.manager.trim_slots(request.request_id, request.num_computed_tokens)
        if request.params.max_tokens == 0 and request.num_computed_tokens == request.num_prompt_tokens:
            self._departure.finish(
                request, FinishReason.LENGTH if request.params.pooling is None else FinishReason.STOP
            )

    def _append(self, request: Request, token_id: int) -> None:
        request.token_ids.append(token_id)
        if request.constraint is not None:
            request.constraint.advance(token_id)
        reason = self._stop_check.take(request, token_id)
        if reason is not None:
            self._departure.finish(request, reason)
