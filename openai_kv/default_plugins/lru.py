"""lru: the least recently used leaf goes first, as in SGLang's RadixAttention (Zheng et al. 2024, arXiv:2312.07104)."""

from collections.abc import Callable

from openai_kv.cache.policy import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.hookspecs import hookimpl


class LRUPolicy(PriorityPolicy):
    """Blocks of one request share their last access; the deepest of them goes first, as only leaves are candidates."""

    name = "lru"

    def priority(self, block: BlockInfo) -> float:
        return block.last_accessed


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(LRUPolicy)
