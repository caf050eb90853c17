"""Means over windows of text, with intervals bootstrapped over the windows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class WindowScore:
    """Of one window: mean negative log likelihood and KL divergence in nats, share of rows with the same top token."""

    loss: float
    kl: float
    agreement: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the middle 95 % of what other draws of windows would give."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Score:
    """One format; `change`: of perplexity, as a share of the reference's."""

    name: str
    token_bytes: float
    perplexity: float
    change: Interval
    kl: Interval
    agreement: Interval


def summarize(name: str, token_bytes: float, scores: Sequence[WindowScore], reference: Sequence[WindowScore]) -> Score:
    losses = np.array([score.loss for score in scores])
    differences = losses - np.array([score.loss for score in reference])
    growth = bootstrap(differences)
    change = Interval(*(math.expm1(value) for value in (growth.value, growth.low, growth.high)))
    kl, agreement = (bootstrap(np.array([getattr(score, field) for score in scores])) for field in ("kl", "agreement"))
    return Score(name, token_bytes, math.exp(losses.mean()), change, kl, agreement)


def bootstrap(values: NDArray[np.float64], seed: int = 0) -> Interval:
    """Percentiles of the means of resampled windows (Efron 1979)."""
    chosen = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(values[chosen].mean(1), (2.5, 97.5))
    return Interval(float(values.mean()), float(low), float(high))
