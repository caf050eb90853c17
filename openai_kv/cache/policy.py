"""The eviction contract: what a policy is told and what it is asked. Base classes for plugin authors."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Optional, Protocol

from openai_kv.cache.candidate_queue import CandidateQueue, Priority
from openai_kv.request import RequestInfo

POLICY_CONTRACT_VERSION = 1  # docs/plugins.md says what may change under the same number


class BlockInfo(Protocol):
    """Read-only metadata of one cached block; the object stays the same for as long as the content is cached.

    After `on_evict` it means nothing any more: what is to be remembered longer is the `key`.
    """

    @property
    def block_id(self) -> int:
        """Where the content lies; another content will lie there later."""

    @property
    def key(self) -> int:
        """64 bits that stand for the content, all tokens before it and the namespace, in this process and the next.

        The same content has the same key when it comes back. The partial last block of a chain changes its key as it
        grows. Two contents may share a key, so never take one for a proof.
        """

    @property
    def parent(self) -> Optional["BlockInfo"]:
        """The block that it continues, which stays cached for as long as it; None at depth 0."""

    @property
    def num_tokens(self) -> int:
        """Less than a block's size only at the end of a chain."""

    @property
    def depth(self) -> int:
        """Index in its chain, 0 first."""

    @property
    def is_first_block(self) -> bool:
        """Depth 0, where the attention sink is."""

    @property
    def ref_count(self) -> int:
        """Running requests that hold it."""

    @property
    def hit_count(self) -> int:
        """Look-ups that matched it since it was inserted."""

    @property
    def created(self) -> int:
        """In ticks, one per look-up taken."""

    @property
    def last_accessed(self) -> int:
        """In ticks: inserted, matched, or its last reference given back."""

    @property
    def created_time(self) -> float:
        """In seconds of the cache's clock."""

    @property
    def last_accessed_time(self) -> float:
        """In seconds of the cache's clock; in `on_access` that is now."""

    @property
    def gap(self) -> float:
        """Seconds it had been idle when the latest look-up matched it; 0 before the first."""

    @property
    def kind(self) -> str:
        """Of the latest request that inserted or matched it: chat, completion, generate (a trace may have others)."""

    @property
    def turn(self) -> int:
        """Of that request: which user message of the conversation it answers, from 1."""

    @property
    def session_id(self) -> str | None:
        """Of that request, if it named one."""


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The cache that a policy governs. `clock` gives the seconds `*_time` are in; in a replay they are the trace's."""

    num_blocks: int
    block_size: int
    clock: Callable[[], float]


class EvictionPolicy:
    """A policy keeps its own order; the cache calls. Constructor arguments are the plugin's options.

    Every hook but `select_victim` may be left out. The cache asks for a victim only while `candidates` is not empty; an
    answer outside `candidates` or an exception is reported with the plugin's name, and the least recently used goes.
    """

    name: ClassVar[str]
    needs_attention: ClassVar[bool] = False

    def start(self, cache: CacheInfo) -> None:
        """Once, before all else."""

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

    The priority, a number or a tuple of numbers, is asked for when the block becomes a candidate, and again when a
    candidate is accessed; ties go to the one that was asked about first.
    """

    @cached_property  # so that a subclass with options need not call our constructor
    def _queue(self) -> CandidateQueue:
        return CandidateQueue()

    def priority(self, block: BlockInfo) -> Priority:
        raise NotImplementedError

    def on_evictable(self, block: BlockInfo) -> None:
        self._queue.add(block, self.priority(block))

    def on_access(self, block: BlockInfo) -> None:
        if block in self._queue:
            self._queue.add(block, self.priority(block))

    def on_unevictable(self, block: BlockInfo) -> None:
        self._queue.discard(block)

    def on_evict(self, block: BlockInfo) -> None:
        self._queue.discard(block)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:  # noqa: ARG002
        return self._queue.first()
