"""Load or recompute: running estimates of what both take, and what follows from them."""

from dataclasses import dataclass

WEIGHT = 0.3  # of the latest measurement
MANY_ROWS = 64  # a step of so many is prefill, and its time goes by rows
FEW_ROWS = 8  # a step of so few takes what any step takes


@dataclass(slots=True)
class Average:
    """Exponentially weighted; `value` is a guess before the first measurement."""

    value: float
    measured: bool = False

    def add(self, value: float) -> None:
        self.value = self.value + WEIGHT * (value - self.value) if self.measured else value
        self.measured = True


class ComputeSpeed:
    """Seconds of a token of prefill, and of a step that is run for little else. Guesses until there were such steps."""

    def __init__(self) -> None:
        self.token = Average(1e-3)
        self.step = Average(2e-2)

    def observe(self, rows: int, seconds: float) -> None:
        if rows >= MANY_ROWS:
            self.token.add(seconds / rows)
        elif 0 < rows <= FEW_ROWS:
            self.step.add(seconds)


def num_to_compute(missing: int, load: float, compute: float, step: float, *, whole: bool) -> int:
    """How many of `missing` blocks to compute from the front now; 0: wait for the load, which comes from the back.

    `load` and `compute` are seconds a block. Both go on at the same time and meet where both end: then one more `step`
    is needed for what follows. Loading all of it needs none, nor does computing it if that is the `whole`: nothing was
    loaded yet.
    """
    meeting = min(missing, -int(-missing * load // (load + compute)))
    all_computed = missing * compute + (0.0 if whole else step)
    costs = {meeting: meeting * compute + step, 0: missing * load, missing: all_computed}
    return min(costs, key=lambda blocks: costs[blocks])
