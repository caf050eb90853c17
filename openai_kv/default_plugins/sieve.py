"""sieve: SIEVE is simpler than LRU (Zhang et al., NSDI 2024)."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from openai_kv.cache.candidate_queue import CandidateQueue
from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.hookspecs import hookimpl


class SievePolicy(EvictionPolicy):
    """A hand goes over the blocks from the oldest to the newest, and again; it spares once what was hit.

    The paper keeps a list and a pointer. Here candidates are in a queue, by the round in which the hand is to come to
    them and by age. It passes over all others at no cost, and comes at once when one of them turns into a candidate, as
    the parent of a victim does.
    """

    name = "sieve"

    def __init__(self) -> None:
        self._queue = CandidateQueue()
        self._place: dict[BlockInfo, tuple[int, int]] = {}  # next round of the hand, and number by age
        self._visited: set[BlockInfo] = set()
        self._inserted = 0
        self._round = 0

    def on_insert(self, block: BlockInfo) -> None:
        self._inserted += 1
        self._place[block] = (self._round, self._inserted)

    def on_access(self, block: BlockInfo) -> None:
        self._visited.add(block)

    def on_evictable(self, block: BlockInfo) -> None:
        self._queue.add(block, self._place[block])

    def on_unevictable(self, block: BlockInfo) -> None:
        self._queue.discard(block)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        while (block := self._hand()) in self._visited:
            self._visited.remove(block)
            self._place[block] = (self._round + 1, self._place[block][1])
            self._queue.add(block, self._place[block])
        if self._place[block][1] == self._inserted:
            self._round += 1  # behind the newest it starts again
        return block

    def _hand(self) -> BlockInfo:
        block = self._queue.first()
        self._round = max(self._round, self._place[block][0])
        return block

    def on_evict(self, block: BlockInfo) -> None:
        self._queue.discard(block)
        self._visited.discard(block)
        del self._place[block]


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(SievePolicy)
