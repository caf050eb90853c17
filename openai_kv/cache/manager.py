"""KVCacheManager: what the scheduler talks to; it keeps the block tables of the running requests."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from openai_kv.cache.block_tables import BlockTables
from openai_kv.cache.computed_blocks import ComputedBlocks
from openai_kv.cache.continuation import continuation
from openai_kv.cache.demotion import Demotion
from openai_kv.cache.eviction import CacheObserver, NullObserver
from openai_kv.cache.exact_prompts import ExactPrompts
from openai_kv.cache.hit import NOTHING, CacheHit, ResetResult
from openai_kv.cache.integrity import check_integrity
from openai_kv.cache.lookup import find_hit
from openai_kv.cache.pin import PinLimits
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.cache.prefix_pins import PrefixPins
from openai_kv.cache.room import Room
from openai_kv.cache.snapshot import Snapshot
from openai_kv.cache.stats import cache_stats
from openai_kv.cache.store import BlockStore
from openai_kv.cache.taken_hits import TakenHits
from openai_kv.metrics import CacheStats
from openai_kv.outputs import BlockCopy, BlockSave
from openai_kv.request import RequestInfo


class KVCacheManager:
    """A request's way: `lookup`, `admit`, then `allocate_slots` and `cache_blocks` as it grows, `free`, `finish`.

    A preempted request is freed and admitted again; `finish` comes once, at its very end. `num_hidden_slots` bounds the
    exact index. Where layers see only `window` tokens, `num_window_blocks` is the size of their pool, and `slide` gives
    back what a request has left behind. One thread only.
    """

    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        policy: EvictionPolicy,
        num_hidden_slots: int,
        clock: Callable[[], float] = time.monotonic,
        observer: CacheObserver | None = None,
        pin_limits: PinLimits | None = None,
        demotion: Demotion | None = None,
        window: int = 0,
        num_window_blocks: int = 0,
    ) -> None:
        self.block_size = block_size
        observer = observer or NullObserver()
        self.store = BlockStore(
            num_blocks=num_blocks,
            block_size=block_size,
            policy=policy,
            num_hidden_slots=num_hidden_slots,
            clock=clock,
            observer=observer,
            pin_limits=pin_limits,
            demotion=demotion,
            window=window,
            num_window_blocks=num_window_blocks,
        )
        self.pins = PrefixPins(self.store)
        self.epoch = time.time() - clock()  # what the clock's zero is in Unix time
        self.snapshot = Snapshot(self.store, clock, self.epoch)
        self._tables = BlockTables(self.store)
        self._room = Room(self.store, self._tables)
        self._hits = TakenHits(self.store, observer)
        self._computed = ComputedBlocks(self.store, self._tables)
        self._exact = ExactPrompts(self.store)

    # Look-up and admission

    def lookup(self, token_ids: Sequence[int], info: RequestInfo) -> CacheHit:
        """The longest cached prefix of `token_ids`, all of them only if exact. Changes nothing, takes no reference."""
        if info.retention.bypasses:
            return NOTHING
        return find_hit(self.store, info.namespace, tuple(token_ids))

    def admit(
        self,
        info: RequestInfo,
        hit: CacheHit,
        num_tokens: int,
        *,
        count: bool = True,
        spare: int = 0,
        window_tokens: int | None = None,
    ) -> tuple[BlockCopy, ...] | None:
        """Take `hit` (of a look-up since which nothing changed) and a block table for `num_tokens`, the hit included.

        Returns the copies to make before the next forward pass, or None: it does not fit and nothing changed.
        It does not fit either if fewer than `spare` blocks would be left for others to grow.
        `count` False for a request that comes back from preemption: it was counted when it was first admitted. Also
        for one that tiers may add to: `count_promoted` follows.
        Of the first `window_tokens` (None: all) it gets the window parts, what follows is left to `allocate_slots`.
        """
        assert num_tokens >= hit.num_tokens, "a table must hold what was hit"
        window_tokens = num_tokens if window_tokens is None else window_tokens
        if not self._room.fits(hit, num_tokens, window_tokens, spare):
            return None
        tail_part = hit.tail.window_id if hit.tail is not None else 0  # its block may be evicted for this request
        self._hits.take(info, hit, count=count)
        allocation = self._tables.open(info, hit)
        self._tables.extend(allocation, num_tokens)
        self._tables.extend_window(allocation, window_tokens)
        if hit.tail is None:
            return ()
        target = allocation.blocks[len(hit.blocks)]
        return (BlockCopy(hit.tail.block_id, target.block_id, hit.tail_tokens, tail_part, target.window_id),)

    def count_promoted(self, info: RequestInfo, hit: CacheHit, promoted: Mapping[str, int], *, count: bool) -> CacheHit:
        """Count a look-up that was admitted with `count` False, now that it is known what tiers added to it.

        `promoted` are tokens by location. Returns the hit with them, which ends at a block boundary then. `count`
        False: only that.
        """
        return self._hits.complete(info, hit, promoted, count=count)

    def content_key(self, info: RequestInfo, hit: CacheHit) -> bytes:
        """Of the last whole block of `hit`, or what a first block starts from: the next block's key follows."""
        return hit.blocks[-1].content_key if hit.blocks else self.store.demotion.root(info.namespace)

    def came_from(self, request_id: str, index: int, tier: int, *, full: bool, window: bool) -> None:
        """Block `index` of the table, or its part of a group, is what tier number `tier` has and need not store."""
        block = self._tables[request_id].blocks[index]
        block.tiers |= full << tier
        block.window_tiers |= window << tier

    def settle(self, request_id: str, num_tokens: int) -> None:
        """So many tokens of the request are there, and what of them is not stored yet was not computed by it."""
        self._tables[request_id].written.settle(num_tokens)

    @property
    def has_saves(self) -> bool:
        """Blocks wait for the next step to read them out for tiers."""
        return bool(self.store.demotion.pending)

    def take_saves(self) -> tuple[BlockSave, ...]:
        """For the step that is being decided, which reads them before it writes anything."""
        return self.store.demotion.take()

    def lose_saves(self, saves: Sequence[BlockSave]) -> None:
        """The step that took them failed: what is still cached is not in the tiers."""
        self.store.demotion.lose(self.store.pool.blocks, saves)

    def forget_tiers(self, tiers: Collection[int]) -> None:
        """Those of these numbers are empty now: what is cached is not there any more."""
        self.store.demotion.forget(self.store.pool.blocks, tiers)

    # Growth

    def allocate_slots(self, request_id: str, num_tokens: int, *, spare: int = 0) -> bool:
        """Let the block table hold `num_tokens` in all, with window parts; False: no room, and nothing changed.

        What takes blocks does not fit either if fewer than `spare` would be left.
        """
        allocation = self._tables[request_id]
        if not self._room.can_grow(allocation, num_tokens, spare):
            return False
        if num_tokens > allocation.num_tokens:
            self._tables.extend(allocation, num_tokens)
        self._tables.extend_window(allocation, num_tokens)
        return True

    def slide(self, request_id: str, num_tokens: int) -> None:
        """`num_tokens` are computed: what the window has left behind is let go, and stays where it is cached."""
        if self.store.windows.window:
            self._tables.slide(self._tables[request_id], num_tokens)

    def first_seen(self, num_blocks: int) -> int:
        """Which blocks' window parts a row behind so many whole blocks needs: from this one on; `num_blocks`: none."""
        windows = self.store.windows
        return windows.first(num_blocks * self.block_size) if windows.window else num_blocks

    def jump(self, request_id: str, num_tokens: int) -> bool:
        """`num_tokens`, whole blocks, are there without being computed: give window parts to what is seen of them.

        False: there is no room for these, and nothing changed.
        """
        allocation = self._tables[request_id]
        if not self._room.can_jump(allocation, num_tokens):
            return False
        self.slide(request_id, num_tokens)
        self._tables.extend_window(allocation, num_tokens)
        return True

    def trim_slots(self, request_id: str, num_tokens: int) -> None:
        """Take back what `allocate_slots` gave for more than `num_tokens`, all that is computed so far."""
        self._tables.shrink(self._tables[request_id], num_tokens)

    def continuation(self, request_id: str, token_ids: Sequence[int], length: int) -> list[int]:
        """At most `length` tokens that followed these of a running request before, within its namespace."""
        allocation = self._tables[request_id]
        if allocation.detached or allocation.info.retention.bypasses:
            return []
        after = allocation.blocks[allocation.num_cached - 1] if allocation.num_cached else None
        rest = tuple(token_ids[allocation.num_cached * self.block_size :])
        return continuation(self.store.tree, allocation.info.namespace, after, rest, length)

    def block_ids(self, request_id: str) -> Sequence[int]:
        """The block table: position p of the request is in slot p % block_size of block p // block_size of it."""
        return self._tables[request_id].block_ids[:]

    def window_block_ids(self, request_id: str) -> Sequence[int]:
        """The same in the window group's pool, as far as it is needed by now; 0, the null block, behind the window."""
        return self._tables[request_id].window_ids[:]

    # Caching

    def cache_blocks(self, request_id: str, token_ids: Sequence[int], *, with_tail: bool) -> None:
        """Make the blocks of `token_ids` (all tokens whose K and V are computed) findable; `with_tail`: the last too.

        The request's full blocks are the tree's own afterwards: where the tree had the same block, ours is freed.
        Nothing behind its last breakpoint is stored for a request in explicit mode.
        """
        self._computed.cache(self._tables[request_id], token_ids, with_tail=with_tail)

    # Exact prompts

    def reserve_hidden_slot(self, prompt: Sequence[int], info: RequestInfo) -> int | None:
        """A slot for the last hidden state of `prompt`, to be stored or released.

        None: the prompt is known or not to be stored, or there is no slot.
        """
        return self._exact.reserve(info, tuple(prompt))

    def store_exact(self, request_id: str, prompt: Sequence[int], slot: int) -> None:
        """`slot` has the hidden state of the last position of `prompt`, whose blocks, tail too, were just cached.

        Released instead, without a word, if the tree does not hold all of `prompt`.
        """
        self._exact.store(self._tables[request_id], tuple(prompt), slot)

    def release_hidden_slot(self, slot: int) -> None:
        """Give a reserved slot back that will not be stored."""
        self._exact.release(slot)

    def cache_write_tokens(self, request_id: str) -> int:
        """Prompt tokens this request computed and newly stored; kept over preemptions, 0 after `finish`."""
        written = self._tables.written.get(request_id)
        return written.tokens if written is not None else 0

    def free(self, request_id: str) -> None:
        """Give all references back; cached content stays. Nothing happens for a request that holds none."""
        self._tables.close(request_id)

    def finish(self, info: RequestInfo) -> None:
        """The request is over, by whatever cause; its count of written tokens goes."""
        self._tables.written.pop(info.request_id, None)
        self.store.evictor.on_request_finished(info)

    @property
    def needs_attention(self) -> bool:
        """The policy goes by what rows attend to."""
        return self.store.evictor.policy.needs_attention

    def record_attention(self, mass: Mapping[int, float]) -> None:
        """Attention mass of one step by block id; for a block that is not cached yet it is kept until it is."""
        if not self.needs_attention:
            return
        for block_id, score in mass.items():
            block = self.store.pool.blocks[block_id]
            if block.node is not None:
                self.store.evictor.record_attention(block, score)
            else:
                block.attention += score

    # The whole

    def expire(self) -> None:
        """End what time has ended; costs nothing if that is nothing. Not between a look-up and taking it."""
        self.store.expire()

    def reset(self, *, include_pinned: bool = False) -> ResetResult:
        """Forget all content but what hard pins keep, or that too, and all soft pins.

        Running requests go on; what they hold is found by nobody any more, unless it is pinned.
        """
        self.expire()
        freed = self.store.drop_all(include_pinned=include_pinned)
        self._tables.detach()
        return ResetResult(freed, self.store.pool.num_blocks - self.store.pool.num_free)

    def stats(self) -> CacheStats:
        """Counts of now and since the start; O(1)."""
        return cache_stats(self.store, self._tables)

    def check_integrity(self) -> None:
        """Raises IntegrityError if the books don't add up; O(blocks), for idle times and tests."""
        check_integrity(self.store, self._tables.by_request.values())
