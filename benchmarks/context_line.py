"""The results of context_cost.py: points, and the straight line through them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Point:
    """`context` counts the new token. `read_bytes`: K and V, in the decode step. `recompute_ms` None: not measured."""

    context: int
    read_bytes: int
    decode_ms: float
    recompute_ms: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope * x by least squares; `r2` is the share of the variance that it explains."""

    intercept: float
    slope: float
    r2: float

    @classmethod
    def fit(cls, xs: Sequence[float], ys: Sequence[float]) -> "Line":
        """At least two points, not all of one height."""
        x, y = np.asarray(xs, dtype=float), np.asarray(ys, dtype=float)
        slope, intercept = np.polyfit(x, y, 1)
        left, spread = y - (intercept + slope * x), y - y.mean()
        return cls(float(intercept), float(slope), float(1 - left @ left / (spread @ spread)))


@dataclass(frozen=True, slots=True)
class Cost:
    """`line`: decode milliseconds by tokens of context. `bytes_per_token`: of K and V in all layers.

    `slope_ratio`: the line's slope by what reading those bytes takes at `bandwidth_gb_s`.
    """

    model: str
    dtype: str
    threads: int
    turns: int
    bandwidth_gb_s: float
    bytes_per_token: float
    line: Line
    slope_ratio: float
    points: tuple[Point, ...]
