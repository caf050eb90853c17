"""Promotion: a prompt's blocks that lie in a tier come from there, as far as that is faster than computing them."""

import time
from collections.abc import Callable
from functools import partial

from openai_kv.cache.content_key import content_keys, window_key
from openai_kv.cache.hit import CacheHit
from openai_kv.cache.manager import KVCacheManager
from openai_kv.request import Request, RequestStatus
from openai_kv.scheduler.promise import Outcome, Promise
from openai_kv.tiers.estimates import ComputeSpeed, num_to_compute
from openai_kv.tiers.fetch import Fetch, Loaded, Payload
from openai_kv.tiers.tiers import Tiers

PATIENCE = 0.05  # share of the time to compute the blocks in question that may be waited for their look-up in any case
FIRST_PATIENCE = 0.15  # and of a tier that was never asked before, to learn how fast it is


class Promotion:
    """Tells the scheduler what of a prompt is there by now, and how far to compute while the rest is being loaded."""

    def __init__(
        self, tiers: Tiers, manager: KVCacheManager, step_rows: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.speed = ComputeSpeed()
        self._tiers = tiers
        self._step_rows = step_rows  # at most
        self._manager = manager
        self._clock = clock
        self._promises: dict[str, Promise] = {}

    @property
    def has_news_to_come(self) -> bool:
        return any(promise.is_open for promise in self._promises.values())

    # -- waiting requests ----------------------------------------------------------------------------------------

    def look(self, request: Request, hit: CacheHit | None = None) -> None:
        """Look up what `hit` (None: what the cache has now) lacks of its tokens, unless that was done already."""
        reads = not request.info.retention.bypasses and not request.lacks_prompt_logprobs
        if not self._tiers.threads or not reads or request.request_id in self._promises:
            return
        found = self._manager.lookup(request.token_ids, request.info) if hit is None else hit
        indexes = range(len(found.blocks), (len(request.token_ids) - 1) // self._manager.block_size)
        if indexes:
            fetch = self._fetch(request, found, indexes)
            self._promises[request.request_id] = Promise(request, fetch, self._manager.block_size)
            self._tiers.look_up(fetch)

    def _fetch(self, request: Request, hit: CacheHit, indexes: range) -> Fetch:
        size, tokens = self._manager.block_size, request.token_ids
        blocks = [tuple(tokens[index * size : (index + 1) * size]) for index in indexes]
        keys = content_keys(self._manager.content_key(request.info, hit), blocks)
        first_seen = self._manager.first_seen
        return Fetch(
            indexes.start,
            keys,
            blocks,
            self._clock(),
            window_keys=[window_key(key) for key in keys] if first_seen(indexes.stop) < indexes.stop else (),
            first_seen=first_seen,
            has_full=self._tiers.has_full,
        )

    def must_wait(self, request: Request, hit: CacheHit) -> bool:
        """Whether its look-up is worth waiting for, or what another one with the same prefix gets from the tiers."""
        self.look(request, hit)
        promise = self._promises.get(request.request_id)
        if promise is None:
            return False
        if self._is_fetched_before(promise):
            promise.is_follower = True
            return True
        if promise.is_follower:  # what it waited for is cached now
            self.forget(request)
            return self.must_wait(request, hit)
        self._advance(promise, self._room())
        return not promise.fetch.settled and self._clock() - promise.fetch.begun < self._patience(promise.fetch)

    def _is_fetched_before(self, promise: Promise) -> bool:
        """Whether one that gets its blocks earlier wants the same."""
        same = (other for other in self._promises.values() if other.fetch.keys[0] == promise.fetch.keys[0])
        return any(other.is_open and other.rank < promise.rank for other in same)

    def _patience(self, fetch: Fetch) -> float:
        """A look-up may take twice of what it does as a rule, if that is little or worth what it finds as a rule."""
        compute = self._seconds(fetch.start, len(fetch.keys))
        if not self._tiers.knows_look_up(fetch):
            return FIRST_PATIENCE * compute
        usual, worth = self._tiers.look_up_seconds(fetch), self._tiers.worth(fetch, compute - self.speed.step.value)
        if 2 * usual < PATIENCE * compute:
            return PATIENCE * compute
        return min(2 * usual, worth) if usual < worth else 0.0

    def _seconds(self, front: int, blocks: int) -> float:
        """To compute so many blocks behind `front` ones."""
        size = self._manager.block_size
        return self.speed.seconds(front * size, (front + blocks) * size, self._step_rows)

    def may_add_to(self, request: Request) -> bool:
        """What it is admitted with may grow: don't count it yet."""
        promise = self._promises.get(request.request_id)
        return promise is not None and promise.is_open

    def admitted(self, request: Request, hit: CacheHit) -> None:
        promise = self._promises.get(request.request_id)
        if promise is not None:
            promise.hit = hit

    # -- running requests ----------------------------------------------------------------------------------------

    def take(self, request: Request) -> list[Loaded]:
        """Blocks of a running request that have arrived; they are to be written to its block table."""
        promise = self._promises.get(request.request_id)
        return [] if promise is None else promise.take(self._tiers.locations)

    def meeting(self, request: Request) -> int | None:
        """How many of its tokens are there once what it took is written, if that is more than it has now."""
        promise = self._promises.get(request.request_id)
        return None if promise is None else promise.meeting

    def meet(self, request: Request) -> dict[int, Payload]:
        """It goes on there: what is to be written to the window group, by the blocks of its table."""
        return self._promises[request.request_id].meet()

    def limit(self, request: Request, most: int) -> int:
        """How many more of its tokens to compute now, while the others are being loaded; 0: wait for those."""
        promise = self._promises.get(request.request_id)
        return most if promise is None else promise.limit(most, self._num_to_compute)

    def _num_to_compute(self, fetch: Fetch) -> int:
        now, speed, compute = self._clock(), self._tiers.speed(fetch), partial(self._seconds, fetch.front)
        if not speed.call.known and now - fetch.begun < FIRST_PATIENCE * compute(fetch.missing):
            return 0
        if not speed.call.measured:
            return fetch.missing
        load = partial(speed.remaining, most=self._tiers.max_batch, silent=now - fetch.since)
        return num_to_compute(fetch.missing, load, compute, self.speed.step.value, whole=fetch.lowest == fetch.end)

    def outcome(self, request: Request) -> Outcome | None:
        """Of a request that nothing can be added to any more; told once."""
        promise = self._promises.get(request.request_id)
        outcome = None if promise is None else promise.outcome()
        if outcome is not None:
            self.forget(request)
        return outcome

    def forget(self, request: Request) -> None:
        promise = self._promises.pop(request.request_id, None)
        if promise is not None:
            promise.fetch.cancelled = True

    def forget_waiting(self) -> None:
        """The tiers are cleared: what waits is not to find anything any more.

        What runs takes no more from them: it would be cached as something that they have.
        """
        for promise in [*self._promises.values()]:
            if promise.request.status is RequestStatus.RUNNING:
                promise.fetch.broken = True
            else:
                self.forget(promise.request)

    # -- all -----------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Once a step: take in what the tiers said, and have them load more where there is room for it.

        Of those that want the same blocks the first gets them, for all.
        """
        room, wanted = self._room(), set[bytes]()
        for promise in sorted(self._promises.values(), key=lambda promise: promise.rank):
            promise.is_follower |= promise.fetch.keys[0] in wanted
            room -= self._advance(promise, 0 if promise.is_follower else room)
            if promise.is_open:
                wanted.add(promise.fetch.keys[0])

    def _room(self) -> int:
        return self._tiers.max_in_flight - sum(promise.fetch.in_flight for promise in self._promises.values())

    def _advance(self, promise: Promise, room: int) -> int:
        fetch = promise.fetch
        fetch.read_inbox()
        if not fetch.settled and self._tiers.has_answered(fetch):
            fetch.settle(self._clock())
        return self._tiers.load(fetch, room) if fetch.settled else 0
