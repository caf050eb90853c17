"""One thread a tier: nobody waits for it, and what it can't do is counted and told."""

import logging
import threading
from collections.abc import Sequence
from queue import SimpleQueue

import pytest

from openai_kv.errors import TierFullError
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier, TierUsage
from openai_kv.tiers.tier_thread import HANGS_AFTER, Job, TierThread
from tests.tiers.inline import INFO, InlineThread

KEY = b"k" * 32


class Gate(HostTier):
    """`contains` waits until the gate is open."""

    def __init__(self) -> None:
        super().__init__(2**20)
        self.entered, self.opened = threading.Event(), threading.Event()

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        self.entered.set()
        assert self.opened.wait(20)
        return super().contains(keys)


def test_reads_go_before_writes_and_the_rest_is_written_at_the_end() -> None:
    tier, done = Gate(), SimpleQueue[str]()
    thread = TierThread(tier, INFO)

    def first(tier: CacheTier) -> None:
        look(tier)
        done.put("first")

    thread.read(Job(first))
    assert tier.entered.wait(20)
    assert thread.write(Job(lambda _: done.put("write")))
    thread.read(Job(lambda _: done.put("read")))
    tier.opened.set()
    thread.close(20)
    assert [done.get() for _ in range(3)] == ["first", "read", "write"]


def look(tier: CacheTier) -> None:
    tier.contains([KEY])


def test_a_tier_that_hangs_is_not_available_and_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    tier, now = Gate(), [0.0]
    thread = TierThread(tier, INFO, clock=lambda: now[0])
    thread.read(Job(look))
    assert tier.entered.wait(20)
    assert thread.is_available
    now[0] = HANGS_AFTER + 0.1
    assert not thread.is_available
    with caplog.at_level(logging.WARNING):
        thread.close(0.0)
    assert "cache tier host is not waited for" in caplog.text
    tier.opened.set()


def failing(tier: CacheTier) -> None:
    raise ConnectionError("gone")


def test_after_errors_it_rests_longer_and_longer(caplog: pytest.LogCaptureFixture) -> None:
    now, given_up = [0.0], list[float]()
    thread = InlineThread(HostTier(2**20), INFO, clock=lambda: now[0])
    for moment, available in ((0.0, True), (0.5, False), (1.0, True), (2.9, False), (3.0, True), (6.9, False)):
        now[0] = moment
        assert thread.is_available == available
        thread.read(Job(failing, lambda: given_up.append(now[0])))
    assert len(given_up) == 6, "those that came while it rested too"
    assert thread.problems == {"error": 3}
    assert caplog.text.count("ConnectionError: gone") == 1, "the log hears of the first, the tenth, ..."
    now[0] = 7.0
    thread.read(Job(lambda tier: tier.clear()))
    now[0] = 7.1
    thread.read(Job(failing))
    now[0] = 8.1
    assert thread.is_available, "after a success it begins with a second again"


def test_a_tier_that_could_not_start_is_started_again() -> None:
    class Late(HostTier):
        attempts = 0

        def start(self, info: object) -> None:
            self.attempts += 1
            if self.attempts == 1:
                raise OSError("not yet")

    now, found = [0.0], list[bool]()
    tier = Late(2**20)
    thread = InlineThread(tier, INFO, clock=lambda: now[0])
    for moment in (0.0, 1.0, 1.0):
        now[0] = moment
        thread.read(Job(lambda tier: found.extend(tier.contains([KEY]))))
    assert (tier.attempts, found) == (2, [False, False])


def test_full_is_no_reason_to_rest() -> None:
    def full(tier: CacheTier) -> None:
        raise TierFullError("no room")

    thread = InlineThread(HostTier(2**20), INFO)
    thread.write(Job(full))
    assert thread.is_available and thread.problems == {"full": 1}


def test_until_it_is_cleared_it_is_not_available() -> None:
    thread = InlineThread(HostTier(2**20), INFO)
    thread.write(Job(lambda tier: tier.put({KEY: b"x"})))
    assert thread.usage.records == 1
    thread.held = True
    thread.clear()
    assert not thread.is_available
    thread.release()
    assert thread.is_available and thread.usage.records == 0


def put(tier: CacheTier) -> None:
    tier.put({KEY: b"x"})


def test_what_it_could_not_clear_is_never_found_again() -> None:
    class Stuck(HostTier):
        def clear(self) -> None:
            if now[0] < 1.0:
                raise ConnectionError("gone")
            super().clear()

    now, found = [0.0], list[bool]()
    thread = InlineThread(Stuck(2**20), INFO, clock=lambda: now[0])
    thread.write(Job(put))
    thread.clear()
    thread.clear()  # given up, as it rests
    now[0] = 1.0
    assert not thread.is_available and thread.problems == {"error": 1}
    thread.write(Job(lambda tier: found.extend(tier.contains([KEY]))))
    assert thread.is_available and found == [False]
    thread.clear()
    assert thread.is_available


def test_an_error_in_telling_what_it_holds_does_not_undo_a_job() -> None:
    class Vague(HostTier):
        def usage(self) -> TierUsage:
            raise ConnectionError("gone")

    now, given_up = [0.0], list[str]()
    tier = Vague(2**20)
    thread = InlineThread(tier, INFO, clock=lambda: now[0])
    thread.write(Job(put, lambda: given_up.append("put")))
    assert tier.contains([KEY]) == [True] and not given_up and thread.problems == {"error": 1}
    now[0] = 1.0
    thread.clear()
    now[0] = 2.0
    assert thread.is_available, "it is cleared, once"


def test_close_is_the_last_call() -> None:
    class Closing(HostTier):
        def usage(self) -> TierUsage:
            calls.append("usage")
            return super().usage()

        def close(self) -> None:
            calls.append("close")

    calls = list[str]()
    thread = TierThread(Closing(2**20), INFO)
    thread.write(Job(put))
    thread.close(20)
    assert calls == ["usage", "close"]


def test_what_two_threads_count_adds_up() -> None:
    thread = InlineThread(HostTier(2**20), INFO)
    thread.count("dropped", 2)
    other = threading.Thread(target=thread.count, args=("dropped", 3))
    other.start()
    other.join()
    thread.count("error", 1)
    assert thread.problems == {"dropped": 5, "error": 1}
    assert len(thread._problems) == 2, "none writes what the other does"
