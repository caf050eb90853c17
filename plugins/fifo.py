"""First in, first out, in one file: `openai-kv serve --plugins-dir plugins --eviction-policy fifo`."""

from collections.abc import Callable

from openai_kv import BlockInfo, EvictionPolicy, PriorityPolicy, hookimpl


class FIFO(PriorityPolicy):
    name = "fifo"

    def priority(self, block: BlockInfo) -> float:
        return block.created


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(FIFO)
