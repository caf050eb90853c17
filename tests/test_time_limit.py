import sys
from itertools import count

import pytest

from openai_kv.time_limit import Clock, TimeUp, time_limit


def loop(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number
    return total


def calling(rounds: int) -> int:
    return sum(map(loop, [1] * rounds))


def counting() -> Clock:
    ticks = count()
    return lambda: float(next(ticks))


def test_a_loop_ends_within_the_limit() -> None:
    clock, wall = counting(), counting()
    with pytest.raises(TimeUp), time_limit(100, __file__, clock, wall):
        loop(10**9)
    assert wall() == 202, "the deadline was set, and looked at until it was over for the thread too"
    assert clock() == 102, "looked at a hundred times in vain, and once not"


def test_a_thread_that_had_to_wait_is_not_ended() -> None:
    with time_limit(100, __file__, clock=lambda: 0.0, wall=counting()):
        assert loop(1000) == 499500


def test_code_from_elsewhere_is_looked_at_when_it_calls() -> None:
    with pytest.raises(TimeUp), time_limit(100, "elsewhere", counting(), counting()):
        calling(10**9)
    with time_limit(100, "elsewhere", counting(), counting()):
        assert loop(1000) == 499500


def test_what_was_traced_before_is_traced_again() -> None:
    before = sys.gettrace()
    with time_limit(1000, __file__):
        assert loop(3) == 3
    assert sys.gettrace() is before
