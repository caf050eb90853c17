"""CandidateQueue: candidates in the order of a key, which a policy may change at any time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai_kv.cache.policy import BlockInfo

Priority = float | tuple[float, ...]


class CandidateQueue:
    """A heap whose outdated entries are left where they are until they come up; O(log n) amortized an operation."""

    def __init__(self) -> None:
        self._heap: list[tuple[Priority, int, BlockInfo]] = []
        self._live: dict[BlockInfo, int] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, block: object) -> bool:
        return block in self._live

    def add(self, block: BlockInfo, key: Priority) -> None:
        """Put `block` in, or move it, by `key`; behind those whose key is equal."""
        self._sequence += 1
        self._live[block] = self._sequence
        heapq.heappush(self._heap, (key, self._sequence, block))
        if len(self._heap) > 2 * len(self._live) + 16:
            self._drop_outdated()

    def discard(self, block: BlockInfo) -> None:
        """Take `block` out, if it is in."""
        self._live.pop(block, None)

    def first(self) -> BlockInfo:
        """The one with the smallest key; it stays in. Raises IndexError if there is none."""
        while self._live.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def _drop_outdated(self) -> None:
        """Blocks that came and went without an eviction left entries behind."""
        self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
