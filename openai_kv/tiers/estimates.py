"""Load or recompute: running estimates of what both take, and what follows from them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

WEIGHT = 0.3  # of the latest measurement
MANY_ROWS = 32  # a step of so many is prefill, and its time goes by rows
FEW_ROWS = 8  # a step of so few takes what any step takes
LATENCY_SHARE = 0.1  # of the time of a call, about
SMALLEST_BATCH = 2  # with a first one of half of that, so that calls always differ in size
MANY_SIZES = 0.05  # times the square of the mean: less variance says nothing of a slope
FAR = 2.0  # times or parts of what was expected of a call
FRESH_SECONDS = 10.0  # for so long a tier is taken to be as fast as it was
GAIN = 0.9  # doing both at once has to take less of the time than this: both slow each other down a little


@dataclass(slots=True)
class Average:
    """Exponentially weighted; `value` is a guess before the first measurement."""

    value: float
    measured: bool = False

    def add(self, value: float) -> None:
        self.value = self.value + WEIGHT * (value - self.value) if self.measured else value
        self.measured = True


class Line:
    """y = base + slope * x, neither below 0, by least squares over points that count less the older they are.

    As long as all x are alike, the base is the last one that was seen, or, if it is `flat` by nature, the slope;
    `known`: they once were not.
    """

    def __init__(self, base: float = 0.0, *, flat: bool = False) -> None:
        self.base, self.slope = base, 0.0
        self.measured = self.known = False
        self._flat = flat
        self._x, self._y, self._xx, self._xy = (Average(0.0) for _ in range(4))

    def at(self, x: float) -> float:
        return self.base + self.slope * x

    def add(self, x: float, y: float) -> None:
        for average, value in zip((self._x, self._y, self._xx, self._xy), (x, y, x * x, x * y), strict=True):
            average.add(value)
        self._fit(self._x.value, self._y.value)
        self.measured = True

    def _fit(self, x: float, y: float) -> None:
        """Through the middle of the points."""
        base = self.base if self.measured else 0.0
        variance, covariance = self._xx.value - x * x, self._xy.value - x * y
        if variance > MANY_SIZES * x * x:
            base, self.known = y - max(0.0, covariance / variance) * x, True
        elif self._flat:
            base = y - self.slope * x
        base = min(max(0.0, base), y)
        self.base, self.slope = base, (y - base) / x if x else 0.0


class ComputeSpeed:
    """Seconds of a step that is run for little else, and of a row of prefill, which grow with the tokens before it.

    Guesses until there were such steps.
    """

    def __init__(self) -> None:
        self.row = Line(1e-3, flat=True)
        self.step = Average(2e-2)

    def observe(self, rows: int, seconds: float, context: float = 0.0) -> None:
        """`context`: tokens before a row, on average."""
        if rows >= MANY_ROWS:
            step = min(self.step.value, seconds / 4) if self.step.measured else 0.0
            self.row.add(context, (seconds - step) / rows)
        elif 0 < rows <= FEW_ROWS:
            self.step.add(seconds)

    def seconds(self, first: int, last: int, rows: int) -> float:
        """To compute tokens `first` up to `last`, in steps of so many rows."""
        steps = -(-(last - first) // rows)
        return steps * self.step.value + (last - first) * self.row.at((first + last) / 2)


class LoadSpeed:
    """Seconds of one call of a tier, by blocks; and of a look-up, with the share of it that was found."""

    def __init__(self) -> None:
        self.call = Line()
        self._measured_at = float("-inf")
        self.look_up = Average(0.0)
        self.found = Average(1.0)

    def observe(self, blocks: int, seconds: float, now: float) -> None:
        """What is far from all before it says that the tier is another one now."""
        call, expected = self.call, self.call.at(blocks)
        if call.known and not expected / FAR < seconds < expected * FAR:
            call = Line()
        call.add(blocks, seconds)
        self.call = call  # only now: the engine reads it, and would take an empty one for a tier that was never asked
        self._measured_at = now

    def is_known(self, now: float) -> bool:
        """Another measurement would not tell much."""
        return self.call.known and now - self._measured_at < FRESH_SECONDS

    def batch(self, *, first: bool, most: int) -> int:
        """Blocks of the next call: as few as they can be without the calls' latency being much of the time.

        So little is waited for, or in vain, when it was wrong to load. The first one of a prompt is smaller.
        """
        if not self.call.measured:
            return 1
        latency, block = self.call.base, self.call.slope
        wanted = latency / (LATENCY_SHARE * block) if block else float(most)
        size = max(SMALLEST_BATCH, min(most, round(wanted)))
        return max(1, size // 2) if first else size

    def seconds(self, blocks: int, most: int) -> float:
        size = self.batch(first=False, most=most)
        return -(-blocks // size) * self.call.base + blocks * self.call.slope

    def remaining(self, blocks: int, most: int, silent: float) -> float:
        """Until so many more are there. A tier that is silent for longer than a call takes is slow or gone.

        By the square of it: so what is waited in vain is a small share of `seconds` if calls are.
        """
        if not blocks:
            return 0.0
        call = self.call.at(self.batch(first=False, most=most))
        late = max(1.0, silent / call) ** 2 if call else 1.0
        return max(0.0, self.seconds(blocks, most) * late - min(silent, call))


def num_to_compute(
    missing: int, load: Callable[[int], float], compute: Callable[[int], float], step: float, *, whole: bool
) -> int:
    """How many of `missing` blocks to compute from the front now; 0: wait for the load, which comes from the back.

    `load(n)` and `compute(n)` are the seconds of n blocks. Both go on at the same time and meet where both end; then
    one more `step` is needed for what follows, as after loading all of it. After computing it only if that is not the
    `whole`: something was loaded before.
    """
    costs = {missing: compute(missing) + (0.0 if whole else step), 0: load(missing) + step}
    best = min(costs.values())
    for blocks in _meetings(missing, load, compute):
        seconds = max(compute(blocks), load(missing - blocks)) + step
        if seconds < GAIN * best:
            costs[blocks] = seconds
    return min(costs, key=lambda blocks: costs[blocks])


def _meetings(missing: int, load: Callable[[int], float], compute: Callable[[int], float]) -> Iterable[int]:
    """Before the load, and after it."""
    low, high = 0, missing
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if compute(middle) <= load(missing - middle) else (low, middle)
    return [blocks for blocks in (low, high) if 0 < blocks < missing]
