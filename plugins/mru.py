"""Most recently used first, in one file: `openai-kv serve --plugins-dir plugins --eviction-policy mru`."""

from collections.abc import Callable

from openai_kv import BlockInfo, EvictionPolicy, PriorityPolicy, hookimpl


class MRU(PriorityPolicy):
    """Best where the same long scan comes again and again, bad elsewhere."""

    name = "mru"

    def priority(self, block: BlockInfo) -> float:
        return -block.last_accessed


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(MRU)
