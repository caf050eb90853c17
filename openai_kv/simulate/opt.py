"""opt: the clairvoyant bound, Belady 1966 ("A study of replacement algorithms") with bypass, leaf-first."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import ClassVar

from openai_kv.cache.candidate_queue import Priority
from openai_kv.cache.policy import BlockInfo, PriorityPolicy
from openai_kv.simulate.trace import TraceRequest


class Lookahead:
    """`next_uses[i][j]`: the next request after i that looks for stored block j of request i; `never` if none does."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self.never = len(requests)
        seen: dict[int, int] = {}
        uses = []
        for index in range(len(requests) - 1, -1, -1):
            request = requests[index]
            uses.append([seen.get(hash_id, self.never) for hash_id in request.stored_ids])
            seen.update(dict.fromkeys(request.hash_ids, index))
        self.next_uses = uses[::-1]


class OptPolicy(PriorityPolicy):
    """The farthest next use goes first, among equals the deepest: a child must not outlive its parent.

    Whoever replays says with `begin` which request is on, and asks `wants` before it gives a new block room.
    """

    name: ClassVar[str] = "opt"

    def __init__(self, lookahead: Lookahead) -> None:
        super().__init__()
        self._lookahead = lookahead
        self._current: list[int] = []
        self._next_use: dict[BlockInfo, int] = {}

    def begin(self, index: int) -> None:
        self._current = self._lookahead.next_uses[index]

    def wants(self, depth: int, candidates: AbstractSet[BlockInfo], is_full: bool) -> bool:
        """Is block `depth` of the current request worth a place, and the place of whom it would drive out?"""
        next_use = self._current[depth]
        if next_use == self._lookahead.never:
            return False
        if not is_full:
            return True
        return bool(candidates) and self._next_use[self.select_victim(candidates)] > next_use

    def on_insert(self, block: BlockInfo) -> None:
        self._next_use[block] = self._current[block.depth]

    def on_access(self, block: BlockInfo) -> None:
        self._next_use[block] = self._current[block.depth]
        super().on_access(block)

    def on_evict(self, block: BlockInfo) -> None:
        super().on_evict(block)
        del self._next_use[block]

    def priority(self, block: BlockInfo) -> Priority:
        return -self._next_use[block], -block.depth
