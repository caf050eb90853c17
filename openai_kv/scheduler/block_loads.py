"""BlockLoads: what has arrived from the tiers goes to the block tables of those that run."""

from dataclasses import dataclass

from openai_kv.cache.manager import KVCacheManager
from openai_kv.outputs import BlockLoad
from openai_kv.request import Request
from openai_kv.scheduler.preemption import Preemption
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.step_plan import StepPlan


@dataclass(frozen=True, slots=True, eq=False)
class BlockLoads:
    """Orders the loads of a step. A request goes on behind them where they close the gap to what it has computed."""

    manager: KVCacheManager
    promotion: Promotion
    preemption: Preemption

    def take(self, request: Request, plan: StepPlan, *, preempts: bool = False) -> None:
        """`preempts`: where the window group has no room to go on behind them, later requests make way."""
        loads, end = self._loads(request), self.promotion.meeting(request)
        if end is not None and self._jump(request, end, plan, preempts=preempts):
            loads += self._window_loads(request)
        else:
            end = request.num_computed_tokens
        if loads:
            plan.load(request, loads)
        request.num_computed_tokens = end

    def _loads(self, request: Request) -> list[BlockLoad]:
        """What has arrived, but for its parts in the window group: those have no place before the gap is closed."""
        loaded, who = self.promotion.take(request), request.request_id
        for each in loaded:
            has_full, has_window = each.full is not None, each.window is not None
            self.manager.came_from(who, each.index, each.tier, full=has_full, window=has_window)
        table, size = self.manager.block_ids(who) if loaded else [], self.manager.block_size
        full = [(each.index, each.full) for each in loaded if each.full is not None]
        return [BlockLoad(table[index], payload, position=index * size) for index, payload in full]

    def _jump(self, request: Request, num_tokens: int, plan: StepPlan, *, preempts: bool) -> bool:
        if preempts:
            return self.preemption.jump(request, num_tokens, plan)
        return self.manager.jump(request.request_id, num_tokens)

    def _window_loads(self, request: Request) -> list[BlockLoad]:
        table = self.manager.window_block_ids(request.request_id)
        parts = self.promotion.meet(request)
        return [BlockLoad(table[index], payload, windowed=True) for index, payload in parts.items()]
