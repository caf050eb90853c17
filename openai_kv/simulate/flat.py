"""The flat replay: a cache without the leaf-first rule, as plain block caches are. The policy objects are the same.

The victim may have cached descendants, which then can't be hit but go on taking up room.
"""

from openai_kv.cache.block import Block
from openai_kv.cache.eviction import CacheObserver, Evictor
from openai_kv.cache.policy import CacheInfo, EvictionPolicy
from openai_kv.request import RequestInfo
from openai_kv.simulate.replay import Clock, Counter, describe
from openai_kv.simulate.trace import Trace, TraceRequest


class FlatCache:
    """At most `capacity` blocks by id, every one of them a candidate always. Each touch is a tick of its own."""

    def __init__(self, capacity: int, policy: EvictionPolicy, clock: Clock, observer: CacheObserver) -> None:
        self.blocks: dict[int, Block] = {}
        self.evictions = 0
        self._free = [Block(block_id) for block_id in range(capacity)]
        self._evictor = Evictor(policy, observer)
        self._clock, self._tick = clock, 0
        self._evictor.start(CacheInfo(capacity, 1, clock))

    def hits(self, hash_ids: tuple[int, ...]) -> int:
        """Cached blocks from the root on."""
        return next((depth for depth, hash_id in enumerate(hash_ids) if hash_id not in self.blocks), len(hash_ids))

    def miss(self, info: RequestInfo, depth: int) -> None:
        self._evictor.on_miss(info, depth)

    def use(self, info: RequestInfo, hash_id: int, depth: int) -> None:
        """Touch the block if it is cached, else insert it."""
        self._tick += 1
        block = self.blocks.get(hash_id)
        if block is None:
            self._insert(info, hash_id, depth)
            return
        block.hit_count += 1
        block.gap = self._clock.now - block.last_accessed_time
        self._stamp(block, info)
        self._evictor.on_access(block)

    def finish(self, info: RequestInfo) -> None:
        self._evictor.on_request_finished(info)

    def _insert(self, info: RequestInfo, hash_id: int, depth: int) -> None:
        if not self._free:
            self._drop(self._evictor.victim().block)
            self.evictions += 1
        block = self._free.pop()
        self.blocks[hash_id] = block
        block.token_ids, block.key, block.depth = (hash_id,), hash_id, depth
        block.created, block.created_time = self._tick, self._clock.now
        self._stamp(block, info)
        self._evictor.on_insert(block)
        if self._evictor.admits(block):
            self._evictor.add(block)
        else:
            self._drop(block)

    def _stamp(self, block: Block, info: RequestInfo) -> None:
        block.kind, block.turn, block.session_id = info.kind, info.turn, info.session_id
        block.last_accessed, block.last_accessed_time = self._tick, self._clock.now

    def _drop(self, block: Block) -> None:
        self._evictor.forget(block)
        del self.blocks[block.token_ids[0]]
        block.clear()
        self._free.append(block)


class FlatReplay:
    """One request at a time; its blocks are used root first (`head`) or deepest first."""

    def __init__(
        self,
        trace: Trace,
        capacity: int,
        policy: EvictionPolicy,
        counter: Counter,
        observer: CacheObserver,
        *,
        head: bool,
    ) -> None:
        self._trace, self._counter, self._head = trace, counter, head
        self._clock = Clock()
        self._cache = FlatCache(capacity, policy, self._clock, observer)

    @property
    def evictions(self) -> int:
        return self._cache.evictions

    def run(self) -> None:
        for index, request in enumerate(self._trace.requests):
            self._clock.now = request.time
            self._replay(describe(index, request), index, request)

    def _replay(self, info: RequestInfo, index: int, request: TraceRequest) -> None:
        cache, stored_ids = self._cache, request.stored_ids
        hit_blocks = cache.hits(request.hash_ids)
        self._counter.count(index, hit_blocks)
        if hit_blocks < len(request.hash_ids):
            cache.miss(info, hit_blocks)
        depths = range(len(stored_ids))
        for depth in depths if self._head else reversed(depths):
            cache.use(info, stored_ids[depth], depth)
        cache.finish(info)
