"""gdsf: Greedy-Dual-Size-Frequency (Cherkasova 1998, HP Labs HPL-98-69R1), that is LFU with ageing and costs.

H = L + frequency * cost / size. L, the age, is the H of the latest victim, so that old fame fades. The size is one
block; the cost is what computing the block again takes. With equal costs it is LFU-DA (Arlitt et al. 2000).
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from openai_kv.cache.candidate_queue import Priority
from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy, PriorityPolicy
from openai_kv.hookspecs import hookimpl


class GDSFPolicy(PriorityPolicy):
    """`doubling_depth`: how many blocks deep one costs twice as much as the first, as attention grows; 0: never.

    A partly filled block costs its part.
    """

    name = "gdsf"

    def __init__(self, doubling_depth: int = 0) -> None:
        if doubling_depth < 0:
            raise ValueError("doubling_depth is below 0")
        self.doubling_depth = doubling_depth
        self._age = 0.0
        self._age_at_touch: dict[BlockInfo, float] = {}

    def start(self, cache: CacheInfo) -> None:
        self._block_size = cache.block_size

    def on_insert(self, block: BlockInfo) -> None:
        self._age_at_touch[block] = self._age

    def on_access(self, block: BlockInfo) -> None:
        self._age_at_touch[block] = self._age
        super().on_access(block)

    def on_evict(self, block: BlockInfo) -> None:
        super().on_evict(block)
        del self._age_at_touch[block]

    def cost(self, block: BlockInfo) -> float:
        """1 for a full block without context."""
        context = block.depth / self.doubling_depth if self.doubling_depth else 0.0
        return block.num_tokens / self._block_size * (1 + context)

    def value(self, block: BlockInfo) -> float:
        return self._age_at_touch[block] + (1 + block.hit_count) * self.cost(block)

    def priority(self, block: BlockInfo) -> Priority:
        return self.value(block), block.last_accessed

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        victim = super().select_victim(candidates)
        self._age = max(self._age, self.value(victim))
        return victim


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(GDSFPolicy)
