"""fifo: first in, first out (Belady 1966, doi:10.1147/sj.52.0078): the leaf that was cached first goes first."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.cache.segments import SegmentedPolicy
from openai_kv.hookspecs import hookimpl


class FIFOPolicy(SegmentedPolicy):
    """Hits change nothing."""

    name = "fifo"

    def __init__(self) -> None:
        self._queue = self.new_segment()

    def on_insert(self, block: BlockInfo) -> None:
        self.place(block, self._queue)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        return self.oldest_in(self._queue)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(FIFOPolicy)
