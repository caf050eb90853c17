"""How often a key may ask: a token bucket for each, filled evenly, a minute's worth deep."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from openai_kv.errors import OverloadedError


@dataclass(frozen=True, slots=True)
class Allowance:
    """After a request was counted, or refused: then `wait` says for how many seconds. `reset`: until all is there."""

    limit: int
    remaining: int
    reset: float
    wait: float

    @property
    def headers(self) -> Mapping[str, str]:
        return {
            "x-ratelimit-limit-requests": str(self.limit),
            "x-ratelimit-remaining-requests": str(self.remaining),
            "x-ratelimit-reset-requests": f"{round(self.reset, 3):g}s",
        }

    def check(self) -> None:
        """Raises OverloadedError `rate_limit_exceeded` if there was none left."""
        if self.wait > 0:
            message = f"More than {self.limit} requests a minute; wait for {self.wait:.1f} seconds."
            raise OverloadedError(message, code="rate_limit_exceeded", retry_after=math.ceil(self.wait))


class RateLimiter:
    """Its memory is a pair of numbers a key; callers without a key share one bucket."""

    def __init__(self, requests_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = requests_per_minute
        self._rate = requests_per_minute / 60
        self._clock = clock
        self._buckets: dict[bytes, tuple[float, float]] = {}

    def take(self, key: bytes) -> Allowance:
        now = self._clock()
        level, updated = self._buckets.get(key, (self._limit, now))
        level = min(self._limit, level + (now - updated) * self._rate)
        wait = max(0.0, (1 - level) / self._rate)
        level -= 0 if wait else 1
        self._buckets[key] = level, now
        return Allowance(self._limit, int(level), (self._limit - level) / self._rate, wait)
