"""BlockStore: blocks and what they hold. References, eviction and pins meet here, so that none is lost or leaked."""

import time
from collections.abc import Callable, Iterable
from functools import partial

from openai_kv.cache.block import Block, TokenIds, chain_key, root_key
from openai_kv.cache.counters import CacheCounters
from openai_kv.cache.demotion import Demotion
from openai_kv.cache.eviction import CacheObserver, Evictor
from openai_kv.cache.exact_index import ExactIndex
from openai_kv.cache.last_use import LastUse
from openai_kv.cache.pin import PinLimits
from openai_kv.cache.pins import Pins
from openai_kv.cache.policy import CacheInfo, EvictionPolicy
from openai_kv.cache.pool import BlockPool
from openai_kv.cache.radix_tree import RadixTree
from openai_kv.cache.window_pool import WindowPool
from openai_kv.metrics import EvictionStats
from openai_kv.request import RequestInfo

SECONDS_UNUSED = 24 * 3600.0  # OpenAI's prompt_cache_retention = "24h"


class BlockStore:
    """Pools, radix tree, exact index and evictor, kept in step with each other."""

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        policy: EvictionPolicy,
        num_hidden_slots: int,
        clock: Callable[[], float],
        observer: CacheObserver,
        pin_limits: PinLimits | None = None,
        demotion: Demotion | None = None,
        window: int = 0,
        num_window_blocks: int = 0,
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.demotion = demotion or Demotion("", ())
        self.windows = WindowPool(window, num_window_blocks, block_size, self.demotion.on_part_evict)
        self.tree = RadixTree(block_size)
        self.exact = ExactIndex(num_hidden_slots)
        self.evictor = Evictor(policy, observer)
        self.pins = Pins(self.pool, self.windows, self.tree, self._settle, clock, pin_limits or PinLimits())
        self.counters = CacheCounters()
        self._last_use = LastUse(num_blocks)
        self._clock = clock
        self._observer = observer
        self._tick = 0
        self.evictor.start(CacheInfo(num_blocks, block_size, clock))

    # References

    def room(self, shared: Iterable[Block] = ()) -> int:
        """How many blocks `take` can provide if those of `shared` stay."""
        idle = sum(block.ref_count == block.pin_count == 0 for block in shared)
        return self.pool.num_free + self.pool.num_evictable - idle

    def take(self, count: int) -> list[Block]:
        """`count` blocks, at most `room`, with one reference each; evicts exactly what is short of free ones."""
        while self.pool.num_free < count:
            if self.evictor.candidates:
                self._evict()
            else:
                self.pins.give_up()
        blocks = self.pool.allocate(count)
        assert blocks is not None
        return blocks

    def share(self, blocks: Iterable[Block]) -> None:
        """One more reference to each of these cached blocks."""
        for block in blocks:
            self.pool.acquire(block)
            self._settle(block)

    def release(self, blocks: Iterable[Block]) -> None:
        """One reference less to each; a chain comes deepest first."""
        now = self._clock()
        for block in blocks:
            if not self.pool.release(block):
                continue
            if block.node is None:
                self.pool.free(block)
                continue
            self._stamp(block, now)
            self._settle(block)

    def access(self, info: RequestInfo, blocks: Iterable[Block]) -> tuple[float, ...]:
        """A look-up that matched `blocks`, root first, is taken: one tick. The times between two hits of a block."""
        self._tick += 1
        now = self._clock()
        gaps = []
        for block in blocks:
            assert block.node is not None, f"{block} was evicted since the look-up"
            if block.hit_count:
                gaps.append(now - block.last_hit_time)
            block.hit_count += 1
            block.last_hit_time = now
            block.gap = now - block.last_accessed_time
            self._use(block, info, now)
            self.evictor.on_access(block)
            self.demotion.on_hit(block)
        return tuple(gaps)

    # Content

    def insert(self, info: RequestInfo, after: Block | None, block: Block, tokens: TokenIds) -> Block:
        """Let `block`, computed by `info`, be found by `tokens` below `after`; returns the block that is.

        That is another one if the tree had the content already: then ours is out of every index.
        """
        new = block.node is None
        held = self.tree.insert(info.namespace, after, block, tokens)
        if held is not block:
            self.counters.duplicates += 1
            self._merge(block, held)
            return held
        block.key = chain_key(root_key(info.namespace) if after is None else after.key, tokens)
        if new:
            self._describe(block, info)
        if len(tokens) == self.tree.block_size:
            self.demotion.on_full(block, after, info.namespace, tokens)
        for shorter in self.tree.superseded(block):  # nobody would ever hit it again
            self._merge(shorter, block)
        return block

    def _merge(self, block: Block, held: Block) -> None:
        """All that `block` holds is in `held`: if it is indexed it leaves, and its exact entries and pins move."""
        if block.node is not None:
            self.exact.move(block, held)
            self.pins.move(block, held)
            self._drop(block)

    def _describe(self, block: Block, info: RequestInfo) -> None:
        now = self._clock()
        block.created, block.created_time = self._tick, now
        block.in_memory = info.retention.in_memory
        self._use(block, info, now)
        if not block.in_memory:
            self._last_use.add(block, now)
        self.evictor.on_insert(block)
        if block.attention:
            self.evictor.record_attention(block, block.attention)

    def _use(self, block: Block, info: RequestInfo, now: float) -> None:
        block.kind, block.turn, block.session_id = info.kind, info.turn, info.session_id
        self._stamp(block, now)

    def _stamp(self, block: Block, now: float) -> None:
        block.last_accessed, block.last_accessed_time = self._tick, now

    # Eviction

    def _evict(self) -> None:
        start = time.perf_counter()
        victim = self.evictor.victim()
        block, now = victim.block, self._clock()
        self.counters.evictions[victim.policy] += 1
        gone = partial(
            EvictionStats,
            policy=victim.policy,
            block_id=block.block_id,
            num_tokens=len(block.token_ids),
            hit_count=block.hit_count,
            lifetime_seconds=now - block.created_time,
            idle_seconds=now - block.last_accessed_time,
        )
        parent = self.tree.parent(block)
        self.demotion.on_evict(block)
        self._drop(block)
        self._settle(parent)
        self._observer.on_eviction(gone(seconds=time.perf_counter() - start))

    def expire(self) -> None:
        """End the pins that are over, and drop what was unused for a day, unless its writer kept it `in_memory`."""
        self.pins.expire()
        now = self._clock()
        for block in self._last_use.before(now - SECONDS_UNUSED):
            if block.info in self.evictor.candidates:
                self.counters.expired += 1
                parent = self.tree.parent(block)
                self._drop(block)
                self._settle(parent)
            else:
                self._last_use.add(block, now)

    def _settle(self, block: Block | None) -> None:
        """`block` changed: is it a candidate now? What the policy does not admit goes instead, leaf by leaf."""
        while block is not None:
            known = block.info in self.evictor.candidates
            evictable = block.ref_count == block.pin_count == 0 and self.tree.is_leaf(block)
            if evictable and block.soft_count:
                self.pins.hold_back(block)
                evictable = False
            else:
                self.pins.release(block)
            if known and not evictable:
                self.evictor.remove(block)
            if known or not evictable:
                return
            if self.evictor.admits(block):
                self.evictor.add(block)
                return
            parent = self.tree.parent(block)
            self._drop(block)
            block = parent

    def _drop(self, block: Block) -> None:
        """The block leaves every index; then it is free, or its request's own."""
        assert not block.pins, f"{block} is pinned"
        self.exact.drop(block)
        self.pins.release(block)
        self.evictor.forget(block)
        self.tree.remove(block)
        self.windows.drop(block)
        block.clear()
        if block.ref_count == 0:
            self.pool.free(block)

    def drop_all(self, *, include_pinned: bool = False) -> int:
        """Forget all content but what hard pins keep, or that too; returns how many blocks that freed."""
        free = self.pool.num_free
        self.pins.clear(hard=include_pinned)
        cached = [block for block in self.pool.blocks if block.node is not None and not block.pin_count]
        for block in sorted(cached, key=lambda block: block.depth, reverse=True):
            self._drop(block)
        return self.pool.num_free - free
