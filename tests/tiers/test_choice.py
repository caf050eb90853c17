"""Loading or computing: what is chosen takes hardly longer than the better of both, in virtual time."""

from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from tests.tiers.virtual import Lab, LoadAll

MEGABYTES_A_SECOND = (1, 10, 40, 200, 1000, 4000)
LATENCIES = (1e-3, 1e-2)
GRID = list(product(MEGABYTES_A_SECOND, LATENCIES))
POINTS = {64: GRID, 256: GRID, 1024: GRID[1::4] + GRID[2::4], 4096: [(10, 1e-3), (200, 1e-2)]}  # by prompt tokens
WARM, FIRST, FIRST_SECONDS = 1.15, 1.5, 0.01  # times the better of both, and so many seconds


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.engine.close()


def stored(lab: Lab, length: int) -> list[int]:
    tokens = [(number * 37 + number // 200) % 256 for number in range(length + 1)]
    lab.ttft(tokens)
    return tokens


def computed(lab: Lab, prompt: list[int]) -> float:
    threads, lab.tiers.threads = lab.tiers.threads, ()
    seconds = lab.ttft(prompt)
    lab.tiers.threads = threads
    return seconds


def loaded(lab: Lab, prompt: list[int]) -> float:
    """By a tier whose speed is known then."""
    return min(lab.ttft(prompt, LoadAll()) for _ in range(2))


def better(lab: Lab, prompt: list[int]) -> float:
    lab.forget_speeds()
    seconds = min(computed(lab, prompt), loaded(lab, prompt))
    lab.forget_speeds()
    return seconds


@pytest.mark.parametrize("length", POINTS)
def test_the_choice_hardly_takes_longer_than_the_better_of_both(lab: Lab, length: int) -> None:
    prompt = stored(lab, length)
    for point in POINTS[length]:
        lab.set_tier(*point)
        best = better(lab, prompt)
        first, _, *later = (lab.ttft(prompt) for _ in range(4))
        assert first <= FIRST * best + FIRST_SECONDS, point
        assert max(later) <= WARM * best, point


@pytest.mark.parametrize("length", [256, 1024])
def test_a_tier_whose_speed_changes(lab: Lab, length: int) -> None:
    prompt, points, best = stored(lab, length), Random(1).sample(GRID, 6), []
    for point in points:
        lab.set_tier(*point)
        best.append(better(lab, prompt))
    for point, seconds in zip(points, best, strict=True):
        lab.set_tier(*point)
        last = [lab.ttft(prompt) for _ in range(6)][-1]
        assert last <= WARM * seconds, point


def test_a_prompt_that_is_in_no_tier_hardly_waits(lab: Lab) -> None:
    prompt = stored(lab, 256)
    lab.set_tier(1000, 1e-2)
    best = computed(lab, prompt)
    waits = [lab.ttft(prompt, namespace=str(number)) - best for number in range(8)]
    assert max(waits) <= FIRST_SECONDS + 0.25 * best
    assert waits[-1] <= (WARM - 1) * best, "nothing is found there, as a rule"
