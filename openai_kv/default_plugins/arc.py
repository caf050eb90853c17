"""arc: a self-tuning, low overhead replacement cache (Megiddo and Modha, FAST 2003)."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.cache.segments import GhostList, SegmentedPolicy
from openai_kv.hookspecs import hookimpl


class ARCPolicy(SegmentedPolicy):
    """T1 has what was seen once, T2 what was seen again; B1 and B2 are the ghosts of both. Sizes as in the paper.

    `p`, the target size of T1, grows when a ghost of B1 comes back and shrinks for one of B2. The paper adapts before
    it replaces; here room is made for a whole request first, and the ghost is noticed after that.
    """

    name = "arc"

    def __init__(self) -> None:
        self._t1, self._t2 = self.new_segment(), self.new_segment()
        self._p = 0

    def start(self, cache: CacheInfo) -> None:
        self._c = cache.num_blocks
        self._b1, self._b2 = GhostList(2 * self._c), GhostList(2 * self._c)

    def on_access(self, block: BlockInfo) -> None:
        self.place(block, self._t2)

    def on_insert(self, block: BlockInfo) -> None:
        key = block.key
        if key in self._b1:
            self._p = min(self._c, self._p + max(1, len(self._b2) // len(self._b1)))
            self._b1.remove(key)
            self.place(block, self._t2)
        elif key in self._b2:
            self._p = max(0, self._p - max(1, len(self._b1) // len(self._b2)))
            self._b2.remove(key)
            self.place(block, self._t2)
        else:
            self.place(block, self._t1)
            self._forget()

    def _forget(self) -> None:
        """T1 and B1 hold c blocks at most, all four lists 2 c."""
        while len(self._b1) and len(self._t1) + len(self._b1) > self._c:
            self._b1.drop_oldest()
        while len(self._b2) and self._total() > 2 * self._c:
            self._b2.drop_oldest()

    def _total(self) -> int:
        return len(self._t1) + len(self._t2) + len(self._b1) + len(self._b2)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        if len(self._t1) > self._p:
            return self.oldest_in(self._t1, self._t2)
        return self.oldest_in(self._t2, self._t1)

    def on_evict(self, block: BlockInfo) -> None:
        (self._b1 if self.segment_of(block) is self._t1 else self._b2).add(block.key)
        super().on_evict(block)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(ARCPolicy)
