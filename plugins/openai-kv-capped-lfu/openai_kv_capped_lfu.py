"""LFU that stops counting, so that fame has a limit. `pip install ./plugins/openai-kv-capped-lfu` adds it."""

from collections.abc import Callable

from openai_kv import BlockInfo, EvictionPolicy, PriorityPolicy, hookimpl


class CappedLFU(PriorityPolicy):
    """Fewest hits first, the least recently used among equals."""

    name = "capped_lfu"

    def __init__(self, max_hits: int = 8) -> None:
        """Hits beyond `max_hits` don't count: what was hot once can leave (`[plugins.capped_lfu] max_hits = 8`)."""
        self.max_hits = max_hits

    def priority(self, block: BlockInfo) -> tuple[float, ...]:
        return min(block.hit_count, self.max_hits), block.last_accessed


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(CappedLFU)
