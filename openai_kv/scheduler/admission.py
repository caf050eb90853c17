"""Admission: a waiting request gets its blocks and first rows."""

from collections.abc import Callable
from dataclasses import dataclass

from openai_kv.cache.hit import NOTHING, CacheHit
from openai_kv.cache.manager import KVCacheManager
from openai_kv.request import Request
from openai_kv.scheduler.block_loads import BlockLoads
from openai_kv.scheduler.herd import Herd
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.queues import RequestQueues
from openai_kv.scheduler.rows import Rows
from openai_kv.scheduler.step_plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """The way from the waiting to the running. `on_started` hears of a request that gets there for the first time."""

    queues: RequestQueues
    manager: KVCacheManager
    promotion: Promotion
    herd: Herd
    loads: BlockLoads
    rows: Rows
    clock: Callable[[], float]
    on_started: Callable[[Request], None] | None

    def admit(self, request: Request, plan: StepPlan) -> bool:
        """Unless it is to wait for what others compute or tiers say; False: no room, and nobody may overtake."""
        reads = not request.lacks_prompt_logprobs
        hit = self.manager.lookup(request.token_ids, request.info) if reads else NOTHING
        if reads and (self.herd.defer(request, hit.num_tokens) or self.promotion.must_wait(request, hit)):
            return True
        if not self._allocate(request, hit, plan):
            return False
        self._start(request, hit)
        self.loads.take(request, plan)
        self._add_rows(request, hit, plan)
        return True

    def _allocate(self, request: Request, hit: CacheHit, plan: StepPlan) -> bool:
        num_tokens = len(request.token_ids)
        copies = self.manager.admit(
            request.info,
            hit,
            num_tokens,
            count=request.choice == 0 and self._is_final(request),
            # A block to grow for each that runs, or the newcomer would be preempted as soon as one of them needs it.
            spare=len(self.queues.running),
            window_tokens=min(num_tokens, hit.num_tokens + plan.budget),
        )
        plan.copies.extend(copies or ())
        return copies is not None

    def _is_final(self, request: Request) -> bool:
        """Whether what it is admitted with is its hit: it was not admitted before, and tiers add nothing to it."""
        return request.num_cached_tokens is None and not self.promotion.may_add_to(request)

    def _start(self, request: Request, hit: CacheHit) -> None:
        self.queues.start(request)
        request.num_computed_tokens = hit.num_tokens
        self.promotion.admitted(request, hit)
        if self._is_final(request):
            request.num_cached_tokens = hit.num_tokens
            request.hit_kind = hit.kind
        if request.first_scheduled_time is None:
            request.first_scheduled_time = self.clock()
            if self.on_started is not None:
                self.on_started(request)

    def _add_rows(self, request: Request, hit: CacheHit, plan: StepPlan) -> None:
        missing = len(request.token_ids) - request.num_computed_tokens
        num_tokens = self.promotion.limit(request, min(missing, plan.budget))
        if not self.manager.allocate_slots(request.request_id, request.num_computed_tokens + num_tokens):
            num_tokens = 0  # what it got from the tiers takes the room: later, when others may have to make way
        plan.budget -= num_tokens
        if num_tokens or not missing:
            plan.requests[request.request_id] = self.rows.of(request, num_tokens, hit.hidden_slot)
