"""sink_lru: LRU that keeps attention sinks, after StreamingLLM (Xiao et al. 2023, arXiv:2309.17453).

The first tokens of a sequence draw attention whatever they say, so their block is never evicted while another candidate
exists. A chain goes leaf-first under every policy: the protection shows only for chains of a single block.
"""

from collections.abc import Callable

from openai_kv.cache.policy import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.hookspecs import hookimpl

SINK = 2.0**52  # more than any last_accessed; the sum is still exact


class SinkLRUPolicy(PriorityPolicy):
    """Least recently used first; first blocks after all others."""

    name = "sink_lru"

    def priority(self, block: BlockInfo) -> float:
        return block.last_accessed + (SINK if block.is_first_block else 0)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(SinkLRUPolicy)
