"""The live replay: requests arrive when the trace says, run as long as the cost model says, and hold their blocks."""

import heapq
from collections import deque

from openai_kv.cache.eviction import CacheObserver
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.request import RequestInfo
from openai_kv.simulate.cost import CostModel
from openai_kv.simulate.replay import UNCACHED, Counter, RadixReplay, describe
from openai_kv.simulate.trace import Trace


class LiveReplay(RadixReplay):
    """As many requests run at once as the pool holds; the others wait in order of arrival.

    A running request holds the blocks of its prompt and of its answer. Its prompt can be hit from its admission on, as
    the server lets others wait for blocks that are being computed. What is known of its answer is cached at its end.
    """

    def __init__(
        self,
        trace: Trace,
        capacity: int,
        policy: EvictionPolicy,
        counter: Counter,
        observer: CacheObserver,
        cost: CostModel,
    ) -> None:
        super().__init__(trace, capacity, policy, counter, observer)
        self._cost = cost
        self._waiting: deque[int] = deque()
        self._running: list[tuple[float, int, RequestInfo]] = []

    def run(self) -> None:
        for index, request in enumerate(self.trace.requests):
            self._run_until(request.time)
            self.clock.now = request.time
            self._waiting.append(index)
            self._start_waiting()
        self._run_until(float("inf"))

    def _run_until(self, time: float) -> None:
        """End what ends by `time`, and start who waits for the room."""
        while self._running and self._running[0][0] <= time:
            self.clock.now, index, info = heapq.heappop(self._running)
            self._end(index, info)
            self._start_waiting()

    def _end(self, index: int, info: RequestInfo) -> None:
        stored_ids = self.trace.requests[index].stored_ids[: self.capacity]
        self.manager.cache_blocks(info.request_id, stored_ids, with_tail=False)
        self.manager.free(info.request_id)
        self.manager.finish(info)

    def _start_waiting(self) -> None:
        while self._waiting and self._start(self._waiting[0]):
            self._waiting.popleft()

    def _start(self, index: int) -> bool:
        """False: there is no room for it yet."""
        request, manager = self.trace.requests[index], self.manager
        info = describe(index, request)
        hit = manager.lookup((*request.hash_ids, UNCACHED), info)
        if manager.admit(info, hit, min(self._num_blocks(index), self.capacity)) is None:
            return False
        self.counter.count(index, hit.num_tokens, waited=self.clock.now - request.time)
        manager.cache_blocks(info.request_id, request.hash_ids[: self.capacity], with_tail=False)
        hit_tokens = self.trace.hit_tokens(request, hit.num_tokens)
        seconds = self._cost.service_seconds(hit_tokens, request.input_tokens, request.output_tokens)
        heapq.heappush(self._running, (self.clock.now + seconds, index, info))
        return True

    def _num_blocks(self, index: int) -> int:
        """Of prompt and answer."""
        request = self.trace.requests[index]
        blocks = -(-(request.input_tokens + request.output_tokens) // self.trace.block_tokens)
        return max(blocks, len(request.stored_ids))
