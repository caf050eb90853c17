"""What a step costs, by its rows."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

LEAST_PER_ROW = 0.02  # of the smallest step: a busy moment at start must not make rows look free


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds that steps of some numbers of rows took; between them, and beyond the last, along straight lines.

    A step of fewer rows than the first, of none too, takes as long: a line down from there may end below zero.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, measured: Mapping[int, float]) -> Self:
        """At least one of them. More rows that took less time took as long: the difference was chance."""
        rows = sorted(measured)
        least = (measured[rows[0]] * (1 + LEAST_PER_ROW * (each - rows[0])) for each in rows)
        slowest = accumulate((measured[each] for each in rows), max)
        return cls(tuple(rows), tuple(map(max, slowest, least)))

    def __call__(self, rows: int) -> float:
        if rows <= self.rows[0] or len(self.rows) == 1:
            return self.seconds[0]
        upper = min(bisect_left(self.rows, rows), len(self.rows) - 1)
        (left, right), (start, end) = self.rows[upper - 1 : upper + 1], self.seconds[upper - 1 : upper + 1]
        return start + (end - start) * (rows - left) / (right - left)
