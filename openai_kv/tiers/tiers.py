"""Tiers: all cache tiers as the engine sees them. Nothing here waits for one."""

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from openai_kv.metrics import TierStats
from openai_kv.outputs import BlockSave
from openai_kv.tiers.estimates import LoadSpeed
from openai_kv.tiers.fetch import Answer, Arrival, Fetch, Loaded
from openai_kv.tiers.record_reader import RecordReader
from openai_kv.tiers.storing import Storing
from openai_kv.tiers.tier import CacheTier
from openai_kv.tiers.tier_thread import Job, TierThread
from openai_kv.tiers.transfers import TierObserver, Transfers

MIN_IN_FLIGHT = 8  # blocks
CALL_BYTES = 32 * 2**20  # of one call to load, at most
READ_BYTES = 256 * 2**20
CLOSE_SECONDS = 5.0


class Tiers:
    """Blocks of `block_bytes` go to tiers, by their numbers, and come back into a Fetch.

    Where some layers see a window only, their part of a block, of `window_block_bytes`, is a record of its own.
    With hidden states, other than 0 `hidden_bytes` a block, either may come; it takes `restore_seconds` to use one.

    `wake` is called in a tier's thread when there is news in a Fetch's inbox.
    """

    def __init__(
        self,
        threads: Sequence[TierThread] = (),
        *,
        block_bytes: int = 1,
        window_block_bytes: int = 0,
        hidden_bytes: int = 0,
        restore_seconds: float = 0.0,
        observer: TierObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.threads = tuple(threads)
        self.wake: Callable[[], None] = lambda: None
        self.speeds = [LoadSpeed() for _ in threads]
        self.max_batch = max(1, CALL_BYTES // (block_bytes + window_block_bytes))
        self.max_in_flight = max(MIN_IN_FLIGHT, READ_BYTES // (block_bytes + window_block_bytes))
        self.has_full = block_bytes > 0
        sizes = tuple(filter(None, (block_bytes, hidden_bytes)))
        self._reader = RecordReader(self.threads, sizes, (window_block_bytes,))
        self._transfers = Transfers(self.locations, observer)
        self._storing = Storing(self.threads, self._transfers, clock)
        self._restore_seconds = restore_seconds
        self._clock = clock

    @property
    def locations(self) -> tuple[str, ...]:
        return tuple(thread.tier.location for thread in self.threads)

    # Look-up

    def look_up(self, fetch: Fetch) -> None:
        """Ask those that are available which of the keys they have."""
        for number, thread in enumerate(self.threads):
            if thread.is_available:
                fetch.looking.add(number)
        for number in [*fetch.looking]:
            job = Job(partial(self._look_up, number, fetch), partial(self._answer, number, fetch, ()))
            self.threads[number].read(job)

    def knows_look_up(self, fetch: Fetch) -> bool:
        """Whether all that have not answered yet did so before."""
        return all(self.speeds[number].look_up.measured for number in fetch.looking)

    def look_up_seconds(self, fetch: Fetch) -> float:
        """How long those that have not answered yet take for it."""
        return max((self.speeds[number].look_up.value for number in fetch.looking), default=0.0)

    def worth(self, fetch: Fetch, seconds: float) -> float:
        """What of `seconds` of computing the best of those that have not answered yet spares, on average."""
        blocks, speeds = len(fetch.keys), (self.speeds[number] for number in fetch.looking)
        spared = (each.found.value * (seconds - each.seconds(blocks, self.max_batch)) for each in speeds)
        return max(spared, default=0.0)

    def has_answered(self, fetch: Fetch) -> bool:
        """Whoever has not yet won't soon."""
        return not any(self.threads[number].is_available for number in fetch.looking)

    def _look_up(self, number: int, fetch: Fetch, tier: CacheTier) -> None:
        keys = fetch.all_keys
        if fetch.cancelled:
            self._answer(number, fetch, ())
            return
        begin = self._clock()
        known = tuple(tier.contains(keys))
        self.speeds[number].look_up.add(self._clock() - begin)
        self.speeds[number].found.add(sum(map(bool, known[: len(keys)])) / len(keys))
        self._answer(number, fetch, known if len(known) == len(keys) else ())

    def _answer(self, number: int, fetch: Fetch, known: Sequence[bool]) -> None:
        fetch.inbox.append(Answer(number, known))
        self.wake()

    # Promotion

    def speed(self, fetch: Fetch) -> LoadSpeed:
        """Of the tier that its next blocks come from."""
        return self.speeds[fetch.source[fetch.lowest - 1 - fetch.start]]

    def load(self, fetch: Fetch, room: int) -> int:
        """Ask for up to `room` more blocks, from the back, of one tier at a time; how many it were."""
        before = fetch.asked
        while room > 0 and fetch.asked > fetch.floor and not fetch.broken:
            first = self._run_start(fetch, room)
            number, last = fetch.source[first - fetch.start], fetch.asked
            fetch.asked = first
            self.threads[number].read(self._job(number, fetch, first, last))
            room -= last - first
        return before - fetch.asked

    def _run_start(self, fetch: Fetch, most: int) -> int:
        first, lowest = fetch.asked - 1, max(fetch.floor, fetch.asked - most)
        tier = fetch.source[first - fetch.start]
        while first > lowest and fetch.source[first - 1 - fetch.start] == tier:
            first -= 1
        return first

    def _job(self, number: int, fetch: Fetch, first: int, last: int) -> Job:
        give_up = partial(self._arrive, fetch, first, [None] * (last - first))
        return Job(partial(self._load, number, fetch, first, last), give_up)

    def _load(self, number: int, fetch: Fetch, first: int, last: int, tier: CacheTier) -> None:
        """As many of them as one call is to have, and the others in the next one, unless they are computed by then.

        What nobody waits for any more still tells how fast the tier is, if that is not known, or was long ago.
        """
        speed = self.speeds[number]
        known = speed.is_known(self._clock())
        begin = max(first, last - speed.batch(first=last == fetch.end, most=self.max_batch))
        if known:
            begin = max(begin, fetch.front)
        if begin >= last or (known and (fetch.cancelled or fetch.broken)):
            self._arrive(fetch, first, [None] * (last - first))
            return
        if begin > first:
            self.threads[number].read(self._job(number, fetch, first, begin), goes_on=True)
        self._call(number, fetch, begin, last, tier)

    def _call(self, number: int, fetch: Fetch, first: int, last: int, tier: CacheTier) -> None:
        begin = self._clock()
        keys = [record.key for index in range(first, last) for record in fetch.records(index)]
        found = dict(zip(keys, tier.get(keys), strict=True))  # too few or too many: an error of the tier's
        blocks = [self._reader.read(number, fetch, index, found) for index in range(first, last)]
        whole = [block for block in blocks if block is not None]
        seconds = self._clock() - begin
        if len(whole) == len(blocks):
            self.speeds[number].observe(len(blocks), seconds + len(blocks) * self._restore_seconds, begin)
        payloads = [part for block in whole for part in (block.full, block.window) if part is not None]
        self._transfers.report(number, "promote", payloads, seconds)
        self._arrive(fetch, first, blocks)

    def _arrive(self, fetch: Fetch, first: int, blocks: Sequence[Loaded | None]) -> None:
        fetch.inbox.append(Arrival(first, blocks, self._clock()))
        self.wake()

    # Demotion

    def store(self, saves: Sequence[BlockSave], payloads: Sequence[bytes]) -> None:
        """What a step has read out of the pool, as its saves ordered."""
        self._storing.store(saves, payloads)

    # The whole

    def clear(self, locations: Collection[str]) -> None:
        """Forget all blocks of these tiers; none is found from now on."""
        for thread in self.threads:
            if thread.tier.location in locations:
                thread.clear()

    def stats(self) -> tuple[TierStats, ...]:
        return tuple(
            TierStats(
                name=thread.tier.location,
                plugin=thread.tier.name,
                blocks=thread.usage.records,
                num_bytes=thread.usage.num_bytes,
                max_bytes=thread.usage.max_bytes,
                demoted_blocks=moved["demote"],
                promoted_blocks=moved["promote"],
                problems=dict(thread.problems),
                available=thread.is_available,
            )
            for thread, moved in zip(self.threads, self._transfers.moved, strict=True)
        )

    def close(self) -> None:
        """Let them store what is waiting, for a moment."""
        for thread in self.threads:
            thread.close(CLOSE_SECONDS)
