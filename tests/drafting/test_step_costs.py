import pytest

from openai_kv.drafting.step_costs import LEAST_PER_ROW, StepCosts


def test_straight_lines_between_and_beyond() -> None:
    costs = StepCosts.of({1: 10.0, 4: 13.0, 8: 21.0})
    assert [costs(rows) for rows in (1, 2, 4, 6, 8, 10)] == pytest.approx([10, 11, 13, 17, 21, 25])


def test_more_rows_never_cost_less_or_nothing() -> None:
    costs = StepCosts.of({1: 10.0, 2: 14.0, 4: 12.0, 64: 10.0})
    assert [costs(rows) for rows in (1, 2, 3, 4)] == pytest.approx([10, 14, 14, 14])
    assert costs(64) == pytest.approx(10 * (1 + 63 * LEAST_PER_ROW))


def test_one_measurement_is_all_there_is() -> None:
    assert StepCosts.of({1: 3.0})(5) == 3.0


def test_no_rows_take_as_long_as_the_fewest() -> None:
    """A line through these two would go below zero."""
    assert StepCosts.of({1: 3.0, 2: 7.0})(0) == 3.0
