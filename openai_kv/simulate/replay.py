"""Replay a trace through KVCacheManager: one block of the trace is one token, and so one block of a cache of size 1."""

from typing import Protocol

from openai_kv.cache.eviction import CacheObserver
from openai_kv.cache.hit import CacheHit
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.request import RequestInfo
from openai_kv.simulate.cost import CostModel
from openai_kv.simulate.opt import OptPolicy
from openai_kv.simulate.result import Tally
from openai_kv.simulate.trace import Trace, TraceRequest

UNCACHED = -1  # a look-up leaves the last token to be computed: this one, so that every block of the trace can hit


class Clock:
    """The time of the trace, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Counter:
    """Counts hits of the requests from number `first` on, and apart from that those of the second half."""

    def __init__(self, trace: Trace, cost: CostModel, first: int) -> None:
        self.tally, self.second_half = Tally(), Tally()
        self._trace, self._cost, self._first = trace, cost, first
        self._middle = len(trace.requests) // 2

    def count(self, index: int, hit_blocks: int, waited: float = 0.0) -> None:
        if index >= self._first:
            self._add(self.tally, self._trace.requests[index], hit_blocks, waited)
        if index >= self._middle:
            self._add(self.second_half, self._trace.requests[index], hit_blocks, waited)

    def _add(self, tally: Tally, request: TraceRequest, hit_blocks: int, waited: float) -> None:
        cost, hit_tokens = self._cost, self._trace.hit_tokens(request, hit_blocks)
        tally.requests += 1
        tally.blocks += len(request.hash_ids)
        tally.hit_blocks += hit_blocks
        tally.tokens += request.input_tokens
        tally.hit_tokens += hit_tokens
        tally.prefill_seconds += cost.prefill_seconds(request.input_tokens)
        tally.saved_prefill_seconds += cost.prefill_seconds(hit_tokens)
        tally.waited_requests += waited > 0
        tally.wait_seconds += waited


class Replay(Protocol):
    """One pass over a trace; `evictions` so far."""

    def run(self) -> None:
        """Replay everything, once."""

    @property
    def evictions(self) -> int: ...


def describe(index: int, request: TraceRequest) -> RequestInfo:
    """Lengths are in blocks of the trace, as every block is one token here."""
    return RequestInfo(
        request_id=str(index),
        num_prompt_tokens=len(request.hash_ids) + 1,
        session_id=request.session_id,
        kind=request.kind,
        turn=request.turn,
    )


class RadixReplay:
    """One request at a time, as the golden replays have it: count its hits, then store all its blocks.

    A request that is longer than the cache stores its head.
    """

    def __init__(
        self, trace: Trace, capacity: int, policy: EvictionPolicy, counter: Counter, observer: CacheObserver
    ) -> None:
        self.trace, self.capacity, self.counter = trace, capacity, counter
        self.clock = Clock()
        self.manager = KVCacheManager(
            num_blocks=capacity, block_size=1, policy=policy, num_hidden_slots=0, clock=self.clock, observer=observer
        )

    @property
    def evictions(self) -> int:
        return self.manager.store.counters.evictions.total()

    def run(self) -> None:
        for index, request in enumerate(self.trace.requests):
            self.clock.now = request.time
            self._replay(index, request)

    def _replay(self, index: int, request: TraceRequest) -> None:
        info = describe(index, request)
        hit = self.manager.lookup((*request.hash_ids, UNCACHED), info)
        self.counter.count(index, hit.num_tokens)
        stored = self._make_room(index, info, hit, len(request.stored_ids))
        self.manager.cache_blocks(info.request_id, request.stored_ids[:stored], with_tail=False)
        self.manager.free(info.request_id)
        self.manager.finish(info)

    def _make_room(self, index: int, info: RequestInfo, hit: CacheHit, wanted: int) -> int:  # noqa: ARG002
        """Give the request blocks; returns how many it has."""
        stored = min(wanted, self.capacity)
        copies = self.manager.admit(info, hit, stored)
        assert copies is not None, "nothing runs, and yet there is no room"
        return stored


class OptReplay(RadixReplay):
    """With bypass: a request gets blocks one by one, until one is not worth the victim."""

    def __init__(
        self,
        trace: Trace,
        capacity: int,
        policy: EvictionPolicy,
        counter: Counter,
        observer: CacheObserver,
        *,
        opt: OptPolicy,
    ) -> None:
        super().__init__(trace, capacity, policy, counter, observer)
        self._opt = opt

    def _make_room(self, index: int, info: RequestInfo, hit: CacheHit, wanted: int) -> int:
        store, stored = self.manager.store, hit.num_tokens
        self._opt.begin(index)
        self.manager.admit(info, hit, stored)
        while stored < wanted and self._opt.wants(stored, store.evictor.candidates.keys(), not store.pool.num_free):
            stored += 1
            self.manager.allocate_slots(info.request_id, stored)
        return stored
