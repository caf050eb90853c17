"""KVCacheManager: what the scheduler talks to. Every reference, cached block and eviction is accounted for here."""

import time
from collections.abc import Callable, Mapping, Sequence

from openai_kv.cache.allocation import Allocation, WriteCount
from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.counters import CacheCounters
from openai_kv.cache.eviction import CacheObserver, Evictor, NullObserver
from openai_kv.cache.exact_index import ExactEntry, ExactIndex
from openai_kv.cache.hit import CacheHit, HitKind, ResetResult
from openai_kv.cache.integrity import check_integrity
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.cache.pool import BlockPool
from openai_kv.cache.radix_tree import RadixTree
from openai_kv.metrics import CacheStats, EvictionStats
from openai_kv.outputs import BlockCopy
from openai_kv.request import RequestInfo

__all__ = ["CacheHit", "CacheObserver", "HitKind", "KVCacheManager", "ResetResult"]


class KVCacheManager:
    """A request's way: `lookup`, `admit`, then `allocate_slots` and `cache_blocks` as it grows, `free`, `finish`.

    A preempted request is freed and admitted again; `finish` comes once, at its very end. `num_hidden_slots` bounds the
    exact index. One thread only.
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
    ) -> None:
        self.block_size = block_size
        self._clock = clock
        self._observer = observer or NullObserver()
        self._pool = BlockPool(num_blocks)
        self._tree = RadixTree(block_size)
        self._exact = ExactIndex(num_hidden_slots)
        self._evictor = Evictor(policy, self._observer)
        self._counters = CacheCounters()
        self._allocations: dict[str, Allocation] = {}
        self._written: dict[str, WriteCount] = {}
        self._num_empty_slots = 0  # in referenced blocks: the ends of the block tables
        self._tick = 0

    # Look-up and admission

    def lookup(self, token_ids: Sequence[int], info: RequestInfo) -> CacheHit:
        """The longest cached prefix of `token_ids`, all of them only if exact. Changes nothing, costs no reference."""
        tokens = tuple(token_ids)
        entry = self._exact.get(info.namespace, tokens)
        if entry is not None:
            return self._exact_hit(len(tokens), entry)
        match = self._tree.find_prefix(info.namespace, tokens[:-1])
        num_tokens = len(match.blocks) * self.block_size + match.tail_tokens
        kind = HitKind.PARTIAL if match.tail else HitKind.RADIX if match.blocks else HitKind.MISS
        return CacheHit(kind, num_tokens, tuple(match.blocks), match.tail, match.tail_tokens, None)

    def _exact_hit(self, num_tokens: int, entry: ExactEntry) -> CacheHit:
        chain = tuple(self._tree.chain(entry.tail))
        tail_tokens = num_tokens % self.block_size
        if not tail_tokens:
            return CacheHit(HitKind.EXACT, num_tokens, chain, None, 0, entry.slot)
        return CacheHit(HitKind.EXACT, num_tokens, chain[:-1], entry.tail, tail_tokens, entry.slot)

    def admit(
        self, info: RequestInfo, hit: CacheHit, num_tokens: int, *, count: bool = True
    ) -> tuple[BlockCopy, ...] | None:
        """Take `hit` (of a look-up since which nothing changed) and a block table for `num_tokens`, the hit included.

        Returns the copies to make before the next forward pass, or None: it does not fit and nothing changed.
        `count` False for a request that comes back from preemption: it was counted when it was first admitted.
        """
        assert info.request_id not in self._allocations, f"{info.request_id} has its blocks already"
        assert num_tokens >= hit.num_tokens, "a table must hold what was hit"
        needed = self._num_blocks(num_tokens) - len(hit.blocks)
        idle = sum(block.ref_count == block.pin_count == 0 for block in hit.blocks)
        if needed > self._pool.num_free + self._pool.num_evictable - idle:
            return None
        if count:
            self._count_lookup(info, hit)
        self._take(hit)
        allocation = self._open(info, hit)
        self._extend(allocation, needed, num_tokens)
        if hit.tail is None:
            return ()
        return (BlockCopy(hit.tail.block_id, allocation.block_ids[len(hit.blocks)], hit.tail_tokens),)

    def _count_lookup(self, info: RequestInfo, hit: CacheHit) -> None:
        self._counters.count_lookup(info, hit)
        if hit.num_tokens < info.num_prompt_tokens - 1:
            self._evictor.on_miss(info, hit.num_tokens)

    def _take(self, hit: CacheHit) -> None:
        self._tick += 1
        now = self._clock()
        for block in hit.blocks:
            self._pool.acquire(block)
        for block in hit.matched:
            assert block.node is not None, f"{block} was evicted since the look-up"
            block.hit_count += 1
            self._stamp(block, now)
            self._evictor.on_access(block)
        if hit.blocks:
            self._settle(hit.blocks[-1])
        if hit.hidden_slot is not None:
            self._exact.touch(hit.hidden_slot)

    def _open(self, info: RequestInfo, hit: CacheHit) -> Allocation:
        written = self._written.setdefault(info.request_id, WriteCount())
        written.settle(hit.num_tokens)
        allocation = Allocation(info, written, len(hit.blocks), num_tokens=len(hit.blocks) * self.block_size)
        allocation.extend(hit.blocks)
        self._allocations[info.request_id] = allocation
        return allocation

    # Growth

    def allocate_slots(self, request_id: str, num_tokens: int) -> bool:
        """Let the block table hold `num_tokens` in all; False: it does not fit and nothing changed."""
        allocation = self._allocations[request_id]
        needed = self._num_blocks(num_tokens) - len(allocation.blocks)
        if needed > self._pool.num_free + self._pool.num_evictable:
            return False
        self._extend(allocation, max(needed, 0), max(num_tokens, allocation.num_tokens))
        return True

    def _extend(self, allocation: Allocation, count: int, num_tokens: int) -> None:
        """Add `count` blocks, evicting exactly what is short of free ones."""
        while self._pool.num_free < count:
            self._evict()
        blocks = self._pool.allocate(count)
        assert blocks is not None
        self._num_empty_slots += count * self.block_size - (num_tokens - allocation.num_tokens)
        allocation.extend(blocks)
        allocation.num_tokens = num_tokens

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def block_ids(self, request_id: str) -> list[int]:
        """The block table: position p of the request is in slot p % block_size of block p // block_size of it."""
        return self._allocations[request_id].block_ids.copy()

    # Caching

    def cache_blocks(self, request_id: str, token_ids: Sequence[int], *, with_tail: bool) -> None:
        """Make the blocks of `token_ids` (all tokens whose K and V are computed) findable; `with_tail`: the last too.

        The request's full blocks are the tree's own afterwards: where the tree had the same block, ours is freed.
        """
        allocation = self._allocations[request_id]
        if allocation.detached:
            return
        size = self.block_size
        for index in range(allocation.num_cached, len(token_ids) // size):
            self._store(allocation, index, tuple(token_ids[index * size : (index + 1) * size]))
            allocation.num_cached += 1
        tail = tuple(token_ids[allocation.num_cached * size :]) if with_tail else ()
        if tail:
            self._store(allocation, allocation.num_cached, tail)

    def _store(self, allocation: Allocation, index: int, tokens: TokenIds) -> None:
        block = allocation.blocks[index]
        if block.node is not None and block.token_ids == tokens:
            return
        after = allocation.blocks[index - 1] if index else None
        end = index * self.block_size + len(tokens)
        new = block.node is None
        held = self._tree.insert(allocation.info.namespace, after, block, tokens)
        if held is not block:
            allocation.written.settle(end)
            self._yield_to(held, allocation, index, whole=len(tokens) == self.block_size)
            return
        allocation.written.store(end, allocation.info.num_prompt_tokens)
        if new:
            self._describe(block, allocation.info)
        self._absorb_shorter(block)

    def _yield_to(self, held: Block, allocation: Allocation, index: int, *, whole: bool) -> None:
        """The tree has the content of our block already: share it if it is `whole`, keep ours private if not."""
        block = allocation.blocks[index]
        self._counters.duplicates += 1
        if block.node is not None:
            self._exact.move(block, held)
            self._drop(block)
        if whole:
            self._pool.acquire(held)
            self._settle(held)
            allocation.replace(index, held)
            self._release(block, self._clock())

    def _describe(self, block: Block, info: RequestInfo) -> None:
        block.kind, block.turn, block.session_id = info.kind, info.turn, info.session_id
        block.created, block.created_time = self._tick, self._clock()
        self._stamp(block, block.created_time)
        self._evictor.on_insert(block)
        if block.attention:
            self._evictor.record_attention(block, block.attention)

    def _absorb_shorter(self, block: Block) -> None:
        """Idle siblings that hold only the beginning of `block` would never be hit again."""
        for shorter in self._tree.superseded(block):
            if shorter.ref_count == shorter.pin_count == 0:
                self._exact.move(shorter, block)
                self._drop(shorter)

    # Exact prompts

    def reserve_hidden_slot(self, prompt: Sequence[int], info: RequestInfo) -> int | None:
        """A slot for the last hidden state of `prompt`, to be stored or released; None: prompt known, or no slot."""
        return self._exact.reserve(info.namespace, tuple(prompt))

    def store_exact(self, request_id: str, prompt: Sequence[int], slot: int) -> None:
        """`slot` has the hidden state of the last position of `prompt`, whose blocks, tail too, were just cached.

        Released instead, without a word, if the tree does not hold all of `prompt`.
        """
        allocation = self._allocations[request_id]
        full, rest = divmod(len(prompt), self.block_size)
        tail: Block | None = None
        if allocation.num_cached >= full and not allocation.detached:
            after = allocation.blocks[full - 1] if full else None
            tail = self._tree.holder(allocation.info.namespace, after, tuple(prompt[-rest:])) if rest else after
        if tail is None:
            self._exact.release(slot)
        else:
            self._exact.store(allocation.info.namespace, tuple(prompt), tail, slot)

    def release_hidden_slot(self, slot: int) -> None:
        """Give a reserved slot back that will not be stored."""
        self._exact.release(slot)

    # The end of a request

    def cache_write_tokens(self, request_id: str) -> int:
        """Prompt tokens this request computed and newly stored; kept over preemptions, 0 after `finish`."""
        written = self._written.get(request_id)
        return written.tokens if written is not None else 0

    def free(self, request_id: str) -> None:
        """Give all references back; cached content stays. Nothing happens for a request that holds none."""
        allocation = self._allocations.pop(request_id, None)
        if allocation is None:
            return
        self._num_empty_slots -= len(allocation.blocks) * self.block_size - allocation.num_tokens
        now = self._clock()
        for block in reversed(allocation.blocks):
            self._release(block, now)

    def finish(self, info: RequestInfo) -> None:
        """The request is over, by whatever cause; its count of written tokens goes."""
        self._written.pop(info.request_id, None)
        self._evictor.on_request_finished(info)

    def record_attention(self, mass: Mapping[int, float]) -> None:
        """Attention mass of one step by block id; for a block that is not cached yet it is kept until it is."""
        if not self._evictor.policy.needs_attention:
            return
        for block_id, score in mass.items():
            block = self._pool.blocks[block_id]
            if block.node is not None:
                self._evictor.record_attention(block, score)
            else:
                block.attention += score

    # Pins: the primitive under whoever keeps a prefix

    def pin(self, block: Block) -> None:
        """Keep a cached block and all before it; a count of its own beside the references.

        Not for the partial block of a running request, which may yet give way to another.
        """
        assert block.ref_count == 0 or len(block.token_ids) == self.block_size, f"{block} is still written"
        for each in reversed(self._tree.chain(block)):
            self._pool.pin(each)
            self._settle(each)

    def unpin(self, block: Block) -> None:
        """Undo one `pin` of the same block."""
        for each in reversed(self._tree.chain(block)):
            self._pool.unpin(each)
            self._settle(each)

    # Eviction

    def _release(self, block: Block, now: float) -> None:
        if not self._pool.release(block):
            return
        if block.node is None:
            self._pool.free(block)
            return
        self._stamp(block, now)
        self._settle(block)

    def _stamp(self, block: Block, now: float) -> None:
        block.last_accessed, block.last_accessed_time = self._tick, now

    def _evict(self) -> None:
        victim = self._evictor.victim()
        block, now = victim.block, self._clock()
        self._counters.evictions[victim.policy] += 1
        self._observer.on_eviction(
            EvictionStats(
                policy=victim.policy,
                block_id=block.block_id,
                num_tokens=len(block.token_ids),
                hit_count=block.hit_count,
                lifetime_seconds=now - block.created_time,
                idle_seconds=now - block.last_accessed_time,
            )
        )
        parent = self._tree.parent(block)
        self._drop(block)
        self._settle(parent)

    def _settle(self, block: Block | None) -> None:
        """`block` changed: is it a candidate now? What the policy does not admit goes instead, leaf by leaf."""
        while block is not None:
            known = block.info in self._evictor.candidates
            evictable = block.ref_count == block.pin_count == 0 and self._tree.is_leaf(block)
            if known and not evictable:
                self._evictor.remove(block)
            if known or not evictable:
                return
            if self._evictor.admits(block):
                self._evictor.add(block)
                return
            parent = self._tree.parent(block)
            self._drop(block)
            block = parent

    def _drop(self, block: Block) -> None:
        """The block leaves every index; it is free, or its request's own."""
        self._exact.drop(block)
        self._evictor.forget(block)
        self._tree.remove(block)
        block.clear()
        if block.ref_count == 0:
            self._pool.free(block)

    # The whole

    def reset(self) -> ResetResult:
        """Forget all content but what is pinned. Running requests go on; what they hold is found by nobody any more."""
        free = self._pool.num_free
        cached = [block for block in self._pool.blocks if block.node is not None and not block.pin_count]
        for block in sorted(cached, key=lambda block: block.depth, reverse=True):
            self._drop(block)
        for allocation in self._allocations.values():
            allocation.detached = True
        return ResetResult(self._pool.num_free - free, self._pool.num_blocks - self._pool.num_free)

    def stats(self) -> CacheStats:
        """Counts of now and since the start; O(1)."""
        pool, counters = self._pool, self._counters
        return CacheStats(
            total=pool.num_blocks,
            free=pool.num_free,
            cached=pool.num_cached,
            referenced=pool.num_referenced,
            block_size=self.block_size,
            referenced_slots_used=pool.num_referenced * self.block_size - self._num_empty_slots,
            tree_nodes=self._tree.num_nodes,
            exact_entries=len(self._exact.entries),
            namespaces=len(self._tree.roots),
            hits=dict(counters.hits),
            hit_tokens=dict(counters.hit_tokens),
            miss_count=counters.misses,
            prompt_tokens=counters.prompt_tokens,
            evictions_by_policy=dict(counters.evictions),
            duplicate_blocks=counters.duplicates,
        )

    def check_integrity(self) -> None:
        """Raises IntegrityError if the books don't add up; O(blocks), for idle times and tests."""
        check_integrity(self._pool, self._tree, self._exact, self._evictor, self._allocations.values())
