"""lfu: least frequently used while cached (in-cache LFU, Breslau et al. 1999, doi:10.1109/INFCOM.1999.749260)."""

from collections.abc import Callable

from openai_kv.cache.candidate_queue import Priority
from openai_kv.cache.policy import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.hookspecs import hookimpl


class LFUPolicy(PriorityPolicy):
    """Fewest hits first, among equals the least recently used. What was hot once stays: `gdsf` ages."""

    name = "lfu"

    def priority(self, block: BlockInfo) -> Priority:
        return block.hit_count, block.last_accessed


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(LFUPolicy)
