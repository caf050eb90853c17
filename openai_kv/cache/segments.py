"""What policies made of queues share: queues of blocks of which only some may be taken, and lists of what is gone."""

from collections import OrderedDict
from collections.abc import Set as AbstractSet
from functools import cached_property

from openai_kv.cache.candidate_queue import CandidateQueue
from openai_kv.cache.policy import BlockInfo, EvictionPolicy


class GhostList:
    """Keys of content that left; beyond `limit` the oldest is forgotten."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def add(self, key: int) -> None:
        """`key` is the newest."""
        self._keys[key] = None
        self._keys.move_to_end(key)
        while len(self._keys) > self.limit:
            self.drop_oldest()

    def remove(self, key: int) -> None:
        del self._keys[key]

    def drop_oldest(self) -> None:
        self._keys.popitem(last=False)


class Segment:
    """Cached blocks, the oldest first. `first` passes over those that are no candidates without looking at them."""

    def __init__(self, evictable: AbstractSet[BlockInfo]) -> None:
        self._evictable = evictable
        self._places: OrderedDict[BlockInfo, int] = OrderedDict()
        self._candidates = CandidateQueue()
        self._end = 0

    def __len__(self) -> int:
        return len(self._places)

    @property
    def oldest(self) -> BlockInfo:
        """Candidate or not."""
        return next(iter(self._places))

    @property
    def first(self) -> BlockInfo | None:
        """The oldest candidate."""
        return self._candidates.first() if self._candidates else None

    def push(self, block: BlockInfo) -> None:
        """`block` is the newest."""
        self._end += 1
        self._places[block] = self._end
        self._places.move_to_end(block)
        if block in self._evictable:
            self.offer(block)

    def remove(self, block: BlockInfo) -> None:
        del self._places[block]
        self._candidates.discard(block)

    def offer(self, block: BlockInfo) -> None:
        """`block` is a candidate; it keeps its place among the others."""
        self._candidates.add(block, self._places[block])

    def withhold(self, block: BlockInfo) -> None:
        self._candidates.discard(block)


class SegmentedPolicy(EvictionPolicy):
    """Base of policies made of queues: `place` each block in one when it is inserted, and whenever it moves.

    A subclass answers `select_victim` from the `first` of its segments; every operation is O(log n) at most.
    """

    @cached_property  # so that a subclass with options need not call our constructor
    def _evictable(self) -> set[BlockInfo]:
        return set()

    @cached_property
    def _segments(self) -> dict[BlockInfo, Segment]:
        return {}

    def new_segment(self) -> Segment:
        return Segment(self._evictable)

    def place(self, block: BlockInfo, segment: Segment) -> None:
        """Put `block` at the recent end of `segment`, out of any other."""
        before = self._segments.get(block)
        if before is not None and before is not segment:
            before.remove(block)
        self._segments[block] = segment
        segment.push(block)

    def segment_of(self, block: BlockInfo) -> Segment:
        return self._segments[block]

    def oldest_in(self, *segments: Segment) -> BlockInfo:
        """The oldest candidate of the first segment that has one; there is one."""
        return next(block for segment in segments if (block := segment.first) is not None)

    def on_evictable(self, block: BlockInfo) -> None:
        self._evictable.add(block)
        self._segments[block].offer(block)

    def on_unevictable(self, block: BlockInfo) -> None:
        self._evictable.discard(block)
        self._segments[block].withhold(block)

    def on_evict(self, block: BlockInfo) -> None:
        self._evictable.discard(block)
        self._segments.pop(block).remove(block)
