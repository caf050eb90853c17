"""sieve: SIEVE is simpler than LRU (Zhang et al., NSDI 2024)."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from openai_kv.cache.candidate_queue import CandidateQueue
from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.hookspecs import hookimpl


class SievePolicy(EvictionPolicy):
    """A hand goes over the blocks from the oldest to the newest, and again; it spares once what was hit.

    The paper keeps a list and a pointer. Here only candidates are in a queue, by the round in which the hand comes to
    them and by age, so that it passes over all others at no cost; their mark stays.
    """

    name = "sieve"

    def __init__(self) -> None:
        self._queue = CandidateQueue()
        self._number: dict[BlockInfo, int] = {}
        self._inserted = 0
        self._visited: set[BlockInfo] = set()
        self._hand = (0, 0)  # round, and number of the block it was at last

    def on_insert(self, block: BlockInfo) -> None:
        self._inserted += 1
        self._number[block] = self._inserted

    def on_access(self, block: BlockInfo) -> None:
        self._visited.add(block)

    def on_evictable(self, block: BlockInfo) -> None:
        self._queue.add(block, self._place(block))

    def on_unevictable(self, block: BlockInfo) -> None:
        self._queue.discard(block)

    def _place(self, block: BlockInfo) -> tuple[int, int]:
        """When the hand will come to `block`: in this round, or behind it in the next."""
        round_, at = self._hand
        number = self._number[block]
        return (round_ if number > at else round_ + 1), number

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        while (block := self._queue.first()) in self._visited:
            self._visited.remove(block)
            self._hand = self._place(block)
            self._queue.add(block, self._place(block))
        self._hand = self._place(block)
        return block

    def on_evict(self, block: BlockInfo) -> None:
        self._queue.discard(block)
        self._visited.discard(block)
        del self._number[block]


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(SievePolicy)
