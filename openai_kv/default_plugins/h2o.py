"""h2o: blocks that drew the least attention go first, after H2O (Zhang et al. 2023, arXiv:2306.14048).

The paper evicts tokens of a running sequence by accumulated attention; here the same sum ranks the blocks of the cache.
Attention sinks (arXiv:2309.17453) are protected as in sink_lru.
"""

from collections.abc import Callable

from openai_kv.cache.policy import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.hookspecs import hookimpl

SINK = 1e12  # more than any mass: a step adds at most layers * heads, and only while a request runs


class H2OPolicy(PriorityPolicy):
    """Smallest accumulated attention mass first; first blocks after all others."""

    name = "h2o"
    needs_attention = True

    def __init__(self) -> None:
        self._mass: dict[BlockInfo, float] = {}

    def on_insert(self, block: BlockInfo) -> None:
        self._mass[block] = 0.0

    def record_attention(self, block: BlockInfo, score: float) -> None:
        self._mass[block] += score

    def on_evict(self, block: BlockInfo) -> None:
        super().on_evict(block)
        del self._mass[block]

    def priority(self, block: BlockInfo) -> float:
        return SINK + self._mass[block] if block.is_first_block else self._mass[block]


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(H2OPolicy)
