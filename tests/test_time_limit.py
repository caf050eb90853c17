import sys
from itertools import count

import pytest

from openai_kv.time_limit import TimeUp, time_limit


def loop(rounds: int) -> int:
    total = 0
    for number in range(rounds):
        total += number
    return total


def calling(rounds: int) -> int:
    return sum(map(loop, [1] * rounds))


def test_a_loop_ends_within_the_limit() -> None:
    ticks = count()
    with pytest.raises(TimeUp), time_limit(100, __file__, clock=lambda: float(next(ticks))):
        loop(10**9)
    assert next(ticks) == 102, "the deadline was set, looked at a hundred times in vain, and once not"


def test_code_from_elsewhere_is_looked_at_when_it_calls() -> None:
    ticks = count()
    with pytest.raises(TimeUp), time_limit(100, "elsewhere", clock=lambda: float(next(ticks))):
        calling(10**9)
    ticks = count()
    with time_limit(100, "elsewhere", clock=lambda: float(next(ticks))):
        assert loop(1000) == 499500


def test_what_was_traced_before_is_traced_again() -> None:
    before = sys.gettrace()
    with time_limit(1000, __file__):
        assert loop(3) == 3
    assert sys.gettrace() is before
