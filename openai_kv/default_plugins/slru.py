"""slru: segmented LRU (Karedla, Love and Wherry 1994, doi:10.1109/2.268884)."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.cache.segments import SegmentedPolicy
from openai_kv.hookspecs import hookimpl


class SLRUPolicy(SegmentedPolicy):
    """New content is on probation; a hit protects it. `protected_share` of the cache at most is protected.

    What is too much there goes back to probation, and has its chance once more.
    """

    name = "slru"

    def __init__(self, protected_share: float = 0.5) -> None:
        if not 0 <= protected_share <= 1:
            raise ValueError("protected_share is not between 0 and 1")
        self.protected_share = protected_share
        self._probation, self._protected = self.new_segment(), self.new_segment()

    def start(self, cache: CacheInfo) -> None:
        self._limit = int(cache.num_blocks * self.protected_share)

    def on_insert(self, block: BlockInfo) -> None:
        self.place(block, self._probation)

    def on_access(self, block: BlockInfo) -> None:
        self.place(block, self._protected)
        if len(self._protected) > self._limit:
            self.place(self._protected.oldest, self._probation)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        return self.oldest_in(self._probation, self._protected)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(SLRUPolicy)
