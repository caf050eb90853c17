import pytest

from openai_kv.tiers.estimates import ComputeSpeed, num_to_compute


@pytest.mark.parametrize(
    ("load", "compute", "step", "expected"),
    [
        (1.0, 100.0, 1.0, 0),  # loading is all but free
        (100.0, 1.0, 1.0, 80),  # computing is
        (10.0, 10.0, 1.0, 40),  # both at once take half of the time
        (10.0, 30.0, 1.0, 20),
        (10.0, 10.0, 500.0, 0),  # ... but for the step more that it takes
        (11.0, 10.0, 500.0, 80),
        (0.0, 1.0, 1.0, 0),
    ],
)
def test_what_is_fastest(load: float, compute: float, step: float, expected: int) -> None:
    assert num_to_compute(80, load, compute, step, whole=True) == expected


@pytest.mark.parametrize("load", [1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("missing", [1, 7, 100])
def test_it_never_takes_longer_than_the_better_of_both(load: float, missing: int) -> None:
    compute, step = 5e-3, 2e-2
    chosen = num_to_compute(missing, load, compute, step, whole=True)
    seconds = max(chosen * compute, (missing - chosen) * load)
    assert seconds <= min(missing * compute, missing * load) + load + compute


def test_nothing_is_missing() -> None:
    assert num_to_compute(0, 1.0, 1.0, 1.0, whole=False) == 0


def test_what_was_loaded_makes_computing_the_rest_a_step_longer() -> None:
    assert num_to_compute(10, 1.05, 1.0, 5.0, whole=True) == 10
    assert num_to_compute(10, 1.05, 1.0, 5.0, whole=False) == 0


def test_speeds_are_measured_on_steps_that_tell() -> None:
    speed = ComputeSpeed()
    speed.observe(0, 9.0)
    speed.observe(30, 9.0)
    assert not speed.token.measured and not speed.step.measured
    speed.observe(100, 0.2)
    speed.observe(4, 0.05)
    assert speed.token.value == pytest.approx(0.002)
    assert speed.step.value == 0.05
    speed.observe(100, 0.3)
    assert speed.token.value == pytest.approx(0.002 + 0.3 * 0.001)
