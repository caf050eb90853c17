"""Preemption: a request that is short of blocks gets those of the last of the running, which waits again."""

from openai_kv.cache.manager import KVCacheManager
from openai_kv.request import Request
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.queues import RequestQueues
from openai_kv.scheduler.request_blocks import RequestBlocks
from openai_kv.scheduler.step_plan import StepPlan


class Preemption:
    """Makes room in the block pools for requests that run. `count` goes over all steps."""

    def __init__(
        self, queues: RequestQueues, manager: KVCacheManager, promotion: Promotion, blocks: RequestBlocks
    ) -> None:
        self.count = 0
        self._queues = queues
        self._manager = manager
        self._promotion = promotion
        self._blocks = blocks

    def make_room(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Grow the block table, preempting the last of the running as often as needed; False: it was this one."""
        while not self._manager.allocate_slots(request.request_id, num_tokens):
            victim = self._queues.running[-1]
            assert victim.request_id not in plan.requests, "the last in order is scheduled last"
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def jump(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Go on behind so many tokens; False: the window group has no room, not even if all later ones make way."""
        while not self._manager.jump(request.request_id, num_tokens):
            victim = self._queues.running[-1]
            if victim is request:
                return False
            self._preempt(victim, plan)
        return True

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        plan.undo_loads(request)
        plan.preempted = True
        self._queues.preempt(request)
        self._promotion.forget(request)
        self._blocks.free(request, keep=True)
        request.num_computed_tokens = 0
        if request.lacks_prompt_logprobs:
            request.prompt_logprobs.clear()
        request.embedding = None
        request.num_preemptions += 1
        self.count += 1
