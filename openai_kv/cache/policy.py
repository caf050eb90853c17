"""The eviction contract: what a policy is told and what it is asked. Base classes for plugin authors."""

import heapq
from collections.abc import Set as AbstractSet
from typing import ClassVar, Protocol

from openai_kv.request import RequestInfo


class BlockInfo(Protocol):
    """Read-only metadata of one cached block; the object stays the same for as long as the content is cached.

    `created`, `last_accessed` count the cache's own ticks (one per look-up taken); `*_time` are seconds of the
    cache's clock. A block is accessed by a look-up that matches it, and when its last reference goes. `depth` is the
    block's index in its chain, 0 first. `kind`, `turn`, `session_id` are of the request that wrote it.
    """

    @property
    def block_id(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def is_first_block(self) -> bool: ...
    @property
    def ref_count(self) -> int: ...
    @property
    def hit_count(self) -> int: ...
    @property
    def created(self) -> int: ...
    @property
    def last_accessed(self) -> int: ...
    @property
    def created_time(self) -> float: ...
    @property
    def last_accessed_time(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def turn(self) -> int: ...
    @property
    def session_id(self) -> str | None: ...


class EvictionPolicy:
    """A policy keeps its own order; the cache calls. Constructor arguments are the plugin's options.

    Every hook but `select_victim` may be left out. The cache asks for a victim only while `candidates` is not empty; an
    answer outside `candidates` or an exception is reported with the plugin's name, and the least recently used goes.
    """

    name: ClassVar[str]
    needs_attention: ClassVar[bool] = False

    def on_insert(self, block: BlockInfo) -> None:
        """The block became cached content."""

    def on_access(self, block: BlockInfo) -> None:
        """A look-up that was taken matched it."""

    def on_miss(self, info: RequestInfo, depth: int) -> None:
        """A look-up that was taken ended after `depth` tokens, short of what was wanted."""

    def on_evictable(self, block: BlockInfo) -> None:
        """Unreferenced, unpinned and without a cached child: a candidate from now on."""

    def on_unevictable(self, block: BlockInfo) -> None:
        """Referenced, pinned or extended again."""

    def on_evict(self, block: BlockInfo) -> None:
        """It is gone, by this policy's choice or another's (reset)."""

    def admit(self, block: BlockInfo) -> bool:  # noqa: ARG002
        """False: do not keep it. Asked whenever the block is about to become a candidate."""
        return True

    def on_request_finished(self, info: RequestInfo) -> None:
        """A request ended, by whatever cause."""

    def record_attention(self, block: BlockInfo, score: float) -> None:
        """Softmax weight over layers, heads and this step's query rows, divided by rows; if `needs_attention`."""

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        """One of `candidates`: the evictable leaf blocks, a read-only set-like view."""
        raise NotImplementedError


class PriorityPolicy(EvictionPolicy):
    """For the short case: give each block a priority, the smallest goes first; O(log n) a decision.

    The priority is asked for when the block becomes a candidate, and again when a candidate is accessed; ties go to the
    one that was asked about first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, BlockInfo]] = []
        self._live: dict[BlockInfo, int] = {}
        self._sequence = 0

    def priority(self, block: BlockInfo) -> float:
        raise NotImplementedError

    def on_evictable(self, block: BlockInfo) -> None:
        self._sequence += 1
        self._live[block] = self._sequence
        heapq.heappush(self._heap, (self.priority(block), self._sequence, block))
        if len(self._heap) > 2 * len(self._live) + 16:
            self._drop_stale()

    def on_access(self, block: BlockInfo) -> None:
        if block in self._live:
            self.on_evictable(block)

    def on_unevictable(self, block: BlockInfo) -> None:
        self._live.pop(block, None)

    def on_evict(self, block: BlockInfo) -> None:
        self._live.pop(block, None)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        while self._live.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)
        return self._heap[0][2]

    def _drop_stale(self) -> None:
        """Blocks that came and went without an eviction left entries behind."""
        self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[1]]
        heapq.heapify(self._heap)
