"""One cache tier, the thread that calls it, and the bounded queues in front of it."""

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from openai_kv.errors import TierFullError
from openai_kv.exporting import worth_a_line
from openai_kv.tiers.tier import CacheTier, TierInfo, TierUsage

logger = logging.getLogger(__name__)
HANGS_AFTER = 1.0  # seconds of one call
LONGEST_REST = 60.0
WRITE_BYTES = 256 * 2**20


def do_nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Job:
    """`run` in the tier's thread, or `give_up`, there too, when the tier is left alone or raises."""

    run: Callable[[CacheTier], None]
    give_up: Callable[[], None] = do_nothing
    num_bytes: int = 0


class TierThread:
    """`read`, `write` and `clear` never wait. Reads go first; writes have room for `write_bytes`.

    After an error the tier rests for 1 s, 2 s, 4 s ... and jobs that come up meanwhile are given up. `problems` counts
    by kind: full, error, corrupt, dropped (no room in the queue, or at rest). Queues take no lock that the thread could
    hold while it is not scheduled.
    """

    def __init__(
        self,
        tier: CacheTier,
        info: TierInfo,
        *,
        clock: Callable[[], float] = time.monotonic,
        write_bytes: int = WRITE_BYTES,
    ) -> None:
        self.tier = tier
        self.usage = TierUsage()
        self._problems: defaultdict[int, Counter[str]] = defaultdict(Counter)  # each thread counts its own
        self._info = info
        self._clock = clock
        self._write_bytes = write_bytes
        self._reads: deque[Job] = deque()
        self._writes: SimpleQueue[Job] = SimpleQueue()
        self._tickets: SimpleQueue[bool] = SimpleQueue()  # one a job; False: end
        self._bytes_in = self._bytes_out = 0  # each side counts its own
        self._clears_in = self._clears_out = self._clears_owed = 0
        self._started = False
        self._failures = 0
        self._rests_until = 0.0
        self._busy_since: float | None = None
        self._thread = self.make_thread()

    def make_thread(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._loop, name=f"openai-kv-tier-{self.tier.name}", daemon=True)
        thread.start()
        return thread

    @property
    def is_available(self) -> bool:
        """It neither rests nor hangs, and holds nothing that a reset forgot."""
        now, busy = self._clock(), self._busy_since
        hangs = busy is not None and now - busy > HANGS_AFTER
        return now >= self._rests_until and not hangs and self._clears_in == self._clears_out

    def read(self, job: Job, *, goes_on: bool = False) -> None:
        """`goes_on`: next, it is the rest of the one that runs."""
        (self._reads.appendleft if goes_on else self._reads.append)(job)
        self._tickets.put(True)

    def write(self, job: Job) -> bool:
        """False: there is no room for it."""
        if self._bytes_in - self._bytes_out + job.num_bytes > self._write_bytes:
            return False
        self._bytes_in += job.num_bytes
        self._writes.put(job)
        self._tickets.put(True)
        return True

    def clear(self) -> None:
        """Forget everything, what is waiting to be written too. Until then the tier is not available.

        What it could not do it owes: nothing is written to it before, or what was to be forgotten would be found again.
        """
        self._clears_in += 1
        self.write(Job(self._clear, self._owe_clear))

    def close(self, seconds: float) -> None:
        """Write what is waiting, close the tier and end; after `seconds` nobody waits any longer."""
        self._tickets.put(False)
        if self._thread is not None:
            self._thread.join(seconds)
        if self._thread is not None and self._thread.is_alive():
            logger.warning("cache tier %s is not waited for; what it had yet to store is lost", self.tier.name)

    @property
    def problems(self) -> Counter[str]:
        return sum((count.copy() for count in [*self._problems.values()]), Counter())

    def count(self, problem: str, number: int, why: object = "") -> None:
        before = self.problems[problem]
        self._problems[threading.get_ident()][problem] += number
        if worth_a_line(before, before + number):
            logger.warning("cache tier %s: %s, %d so far; %s", self.tier.name, problem, before + number, why)

    # -- in the thread -------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        while self._tickets.get():
            self.run_next()
        self._call(Job(lambda tier: tier.close()))

    def run_next(self) -> None:
        try:
            job = self._reads.popleft()
        except IndexError:
            job = self._writes.get_nowait()
            self._bytes_out += job.num_bytes
        if self._clock() < self._rests_until:
            job.give_up()
        elif self._call(job):
            self._call(Job(self._look_at_usage))  # an error there does not undo the job

    def _call(self, job: Job) -> bool:
        """Whether it was done."""
        self._busy_since = self._clock()
        try:
            self._start()
            if self._clears_owed:
                self._clear(self.tier)
            job.run(self.tier)
            self._failures = 0
            return True
        except TierFullError as error:
            self.count("full", 1, error)
        except (Exception, SystemExit) as error:
            self._rest(error)
        finally:
            self._busy_since = None
        job.give_up()
        return False

    def _look_at_usage(self, tier: CacheTier) -> None:
        self.usage = tier.usage()

    def _start(self) -> None:
        if not self._started:
            self.tier.start(self._info)
            self._started = True

    def _rest(self, error: BaseException) -> None:
        self._rests_until = self._clock() + min(2.0**self._failures, LONGEST_REST)
        self._failures = min(self._failures + 1, 10)
        self.count("error", 1, f"{type(error).__name__}: {error}")

    def _clear(self, tier: CacheTier) -> None:
        tier.clear()
        self._clears_out += max(1, self._clears_owed)
        self._clears_owed = 0

    def _owe_clear(self) -> None:
        self._clears_owed += 1
