"""Least frequently used: the block with the fewest hits goes first. `pip install ./plugins/openai-kv-lfu` adds it."""

from collections.abc import Callable

from openai_kv import BlockInfo, EvictionPolicy, PriorityPolicy, hookimpl


class LFU(PriorityPolicy):
    name = "lfu"

    def __init__(self, max_hits: int = 8) -> None:
        """Hits beyond `max_hits` don't count, so that what was hot once can leave (`[plugins.lfu] max_hits = 8`)."""
        super().__init__()
        self.max_hits = max_hits

    def priority(self, block: BlockInfo) -> float:
        return min(block.hit_count, self.max_hits)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(LFU)
