"""s3_fifo: FIFO queues are all you need for cache eviction (Yang et al., SOSP 2023, doi:10.1145/3600006.3613147)."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.cache.segments import GhostList, SegmentedPolicy
from openai_kv.hookspecs import hookimpl

MAX_COUNT = 3


class S3FIFOPolicy(SegmentedPolicy):
    """New content passes a small queue; what is hit twice there, or comes back soon after, enters the main queue.

    `small_share` of the cache is the small queue's. The ghost list remembers as many blocks as the main queue may hold.
    """

    name = "s3_fifo"

    def __init__(self, small_share: float = 0.1) -> None:
        if not 0 <= small_share <= 1:
            raise ValueError("small_share is not between 0 and 1")
        self.small_share = small_share
        self._small, self._main = self.new_segment(), self.new_segment()
        self._count: dict[BlockInfo, int] = {}

    def start(self, cache: CacheInfo) -> None:
        self._small_size = max(1, int(cache.num_blocks * self.small_share))
        self._ghost = GhostList(cache.num_blocks - self._small_size)

    def on_insert(self, block: BlockInfo) -> None:
        self._count[block] = 0
        if block.key in self._ghost:
            self._ghost.remove(block.key)
            self.place(block, self._main)
        else:
            self.place(block, self._small)

    def on_access(self, block: BlockInfo) -> None:
        self._count[block] = min(self._count[block] + 1, MAX_COUNT)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        return self._from_small() or self._from_main() or self.oldest_in(self._small)

    def _from_small(self) -> BlockInfo | None:
        """While the queue has its share; None: what could go was promoted."""
        while len(self._small) >= self._small_size and (block := self._small.first) is not None:
            if self._count[block] <= 1:
                return block
            self._count[block] = 0
            self.place(block, self._main)
        return None

    def _from_main(self) -> BlockInfo | None:
        """A hit pays for one more round."""
        while (block := self._main.first) is not None and self._count[block] > 0:
            self._count[block] -= 1
            self.place(block, self._main)
        return block

    def on_evict(self, block: BlockInfo) -> None:
        if self.segment_of(block) is self._small:
            self._ghost.add(block.key)
        del self._count[block]
        super().on_evict(block)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(S3FIFOPolicy)
