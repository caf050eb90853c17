"""HitDensityPolicy: base of policies that learn when blocks are used again, and keep where most hits are to be had."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from random import Random

from openai_kv.cache.candidate_queue import CandidateQueue
from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.cache.request_use import RequestUse, UseTracker
from openai_kv.cache.reuse import EDGES, ReuseModel, Traits, bin_of, hit_density
from openai_kv.cache.reuse_watch import ReuseWatch

DRAWN = 2  # watched blocks of a request, beside its last two
MIN_WATCHED, WATCHED_PER_BLOCK, MAX_WATCHED = 1024, 16, 2**17
REFRESH_EVERY = 32  # requests


@dataclass(slots=True)
class Candidate:
    """Idle `since` then, it has come into bin `age_bin` of idle time."""

    traits: Traits
    since: float
    age_bin: int

    @property
    def due(self) -> float:
        """When it comes into the next bin."""
        return self.since + EDGES[self.age_bin]


class HitDensityPolicy(EvictionPolicy):
    """A candidate is worth the `hit_density` of its bin of idle time; the least goes, of equals the least lately used.

    Values are looked up when a block becomes a candidate and when it comes into another bin: O(log n), with O(bins) now
    and then for each kind of block. Blocks that are not worth their place go at once: that is the admission. The last
    two blocks of a request and some in between stay watched after they are gone.
    """

    def __init__(self, model: ReuseModel, seed: int) -> None:
        self._model, self._random = model, Random(seed)
        self._tracker = UseTracker()
        self._queue, self._ageing = CandidateQueue(), CandidateQueue()
        self._candidates: dict[BlockInfo, Candidate] = {}
        self._values: dict[Traits, list[float]] = {}
        self._num_closed = 0

    def start(self, cache: CacheInfo) -> None:
        self._clock = cache.clock
        self._watch = ReuseWatch(self._model, min(MIN_WATCHED + WATCHED_PER_BLOCK * cache.num_blocks, MAX_WATCHED))

    def on_access(self, block: BlockInfo) -> None:
        self._tracker.matched(block, self._watch.used(block.key, self._clock()))
        if block in self._candidates:
            self.on_evictable(block)

    def on_insert(self, block: BlockInfo) -> None:
        self._tracker.inserted(block, self._watch.used(block.key, self._clock()))

    def on_evictable(self, block: BlockInfo) -> None:
        use = self._tracker[block]
        if not use.closed:
            self._close(use)
        traits, since = use.traits(block.depth, block.hit_count), block.last_accessed_time
        self._candidates[block] = Candidate(traits, since, bin_of(self._clock() - since))
        self._place(block)

    def _close(self, use: RequestUse) -> None:
        """The request is over: watch some of its blocks from now on."""
        blocks, last, now = use.close(), use.length - 1, self._clock()
        first = use.length - len(blocks)
        drawn = [self._random.randrange(first, use.length) for _ in range(DRAWN)]
        for depth in sorted({*drawn, last, max(last - 1, first)}):
            block = blocks[depth - first]
            self._watch.add(block.key, use.traits(depth, block.hits), use, now)
        self._num_closed += 1
        if self._num_closed % REFRESH_EVERY == 0:
            self._values.clear()

    def _place(self, block: BlockInfo) -> None:
        candidate = self._candidates[block]
        self._queue.add(block, (self._values_of(candidate.traits)[candidate.age_bin], block.last_accessed))
        if candidate.age_bin < len(EDGES):
            self._ageing.add(block, candidate.due)
        else:
            self._ageing.discard(block)

    def _values_of(self, traits: Traits) -> list[float]:
        values = self._values.get(traits)
        if values is None:
            values = self._values[traits] = hit_density(self._model.hazards(traits))
        return values

    def on_unevictable(self, block: BlockInfo) -> None:
        self._queue.discard(block)
        self._ageing.discard(block)
        self._candidates.pop(block, None)

    def on_evict(self, block: BlockInfo) -> None:
        self.on_unevictable(block)
        self._tracker.forget(block)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        self._advance(self._clock())
        return self._queue.first()

    def _advance(self, now: float) -> None:
        self._watch.advance(now)
        while self._ageing and (candidate := self._candidates[block := self._ageing.first()]).due <= now:
            candidate.age_bin = max(candidate.age_bin + 1, bin_of(now - candidate.since))
            self._place(block)
