from functools import partial

import pytest

from openai_kv.tiers.estimates import ComputeSpeed, Line, LoadSpeed, num_to_compute


def chosen(missing: int, load: float, compute: float, step: float, *, whole: bool = True) -> int:
    """Seconds a block."""
    return num_to_compute(missing, lambda n: n * load, lambda n: n * compute, step, whole=whole)


@pytest.mark.parametrize(
    ("load", "compute", "step", "expected"),
    [
        (1.0, 100.0, 1.0, 0),  # loading is all but free
        (100.0, 1.0, 1.0, 80),  # computing is
        (10.0, 10.0, 1.0, 40),  # both at once take half of the time
        (10.0, 30.0, 1.0, 20),
        (10.0, 10.0, 500.0, 80),  # ... but for the step more that it takes, as loading all does
        (2.0, 10.0, 500.0, 0),
        (0.0, 1.0, 1.0, 0),
    ],
)
def test_what_is_fastest(load: float, compute: float, step: float, expected: int) -> None:
    assert chosen(80, load, compute, step) == expected


@pytest.mark.parametrize("load", [1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("missing", [1, 7, 100])
def test_it_never_takes_longer_than_the_better_of_both(load: float, missing: int) -> None:
    compute, step = 5e-3, 2e-2
    blocks = chosen(missing, load, compute, step)
    seconds = max(blocks * compute, (missing - blocks) * load) + (step if blocks < missing else 0.0)
    assert seconds <= min(missing * compute, missing * load + step) + 1e-9


def test_nothing_is_missing() -> None:
    assert chosen(0, 1.0, 1.0, 1.0, whole=False) == 0


def test_what_was_loaded_makes_computing_the_rest_a_step_longer() -> None:
    assert chosen(10, 0.95, 1.0, 50.0) == 10
    assert chosen(10, 0.95, 1.0, 50.0, whole=False) == 0


def test_a_line_is_fitted_to_what_varies() -> None:
    line = Line()
    for x in (1, 8, 2, 8):
        line.add(x, 5.0 + 2.0 * x)
    assert [line.base, line.slope] == pytest.approx([5.0, 2.0])
    for _ in range(30):
        line.add(8, 5.0 + 4.0 * 8)
    assert line.at(8) == pytest.approx(37.0, rel=1e-3)
    assert 0 < line.base < 5.0, "what the same point again and again can't tell stays"


def test_one_point_says_nothing_of_the_slope() -> None:
    line, flat = Line(), Line(1.0, flat=True)
    for each in (line, flat):
        each.add(4.0, 8.0)
        assert each.measured and not each.known
    assert (line.base, line.slope) == (0.0, 2.0)
    assert (flat.base, flat.slope) == (8.0, 0.0)


def test_a_line_that_would_fall_is_level() -> None:
    line = Line()
    for x in (1, 8, 1, 8):
        line.add(x, 10.0 - x)
    assert line.slope == pytest.approx(0.0) and line.base > 0


def test_computing_is_measured_on_steps_that_tell() -> None:
    speed = ComputeSpeed()
    speed.observe(0, 9.0)
    speed.observe(20, 9.0)
    assert not speed.row.measured and not speed.step.measured
    speed.observe(4, 0.05)
    speed.observe(100, 0.25, context=50.0)
    assert speed.step.value == 0.05
    assert speed.seconds(0, 100, 512) == pytest.approx(0.25)
    speed.observe(100, 0.45, context=1050.0)
    assert speed.row.at(50) == pytest.approx(0.002) and speed.row.at(1050) == pytest.approx(0.004)
    assert speed.seconds(0, 1000, 400) == pytest.approx(3 * 0.05 + 1000 * speed.row.at(500))


def measured(latency: float, block: float) -> LoadSpeed:
    speed = LoadSpeed()
    for blocks in (1, 2, 2):
        speed.observe(blocks, latency + block * blocks, now=0.0)
    return speed


def test_a_call_has_as_few_blocks_as_its_latency_allows() -> None:
    assert LoadSpeed().batch(first=True, most=64) == 1, "to see how long it takes"
    assert measured(0.0, 0.04).batch(first=True, most=64) == 1
    assert measured(0.0, 0.04).batch(first=False, most=64) == 2
    assert measured(0.01, 0.01).batch(first=False, most=64) == 10
    assert measured(0.01, 0.01).batch(first=True, most=64) == 5, "so that calls differ"
    assert measured(0.01, 0.0).batch(first=False, most=64) == 64


def test_what_remains_of_a_load() -> None:
    remaining = partial(measured(0.01, 0.01).remaining, most=64)
    assert remaining(20, silent=0.0) == pytest.approx(2 * 0.01 + 20 * 0.01)
    assert remaining(20, silent=0.05) == pytest.approx(0.22 - 0.05)
    assert remaining(20, silent=0.22) == pytest.approx(4 * 0.22 - 0.11), "slow, by now"
    assert remaining(0, silent=9.0) == 0.0


def test_a_tier_that_is_another_one_now_is_measured_anew() -> None:
    speed = measured(0.0, 0.04)
    assert speed.is_known(now=1.0)
    assert not speed.is_known(now=100.0), "that was long ago"
    speed.observe(2, 0.02, now=1.0)
    assert not speed.is_known(now=1.0)
    speed.observe(1, 0.015, now=1.0)
    assert speed.is_known(now=1.0)
    assert [speed.call.base, speed.call.slope] == pytest.approx([0.01, 0.005])
