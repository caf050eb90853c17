"""Transfers: how much went to each tier and came from it, and whoever wants to hear of it."""

from collections.abc import Sequence, Sized
from typing import Protocol

from openai_kv.metrics import TransferStats


class TierObserver(Protocol):
    """Whoever wants to hear of it, from any thread; must not raise."""

    def on_transfer(self, stats: TransferStats) -> None: ...


class Transfers:
    """Records moved since the start, by the tiers' numbers. Each is reported in the thread of its tier."""

    def __init__(self, locations: Sequence[str], observer: TierObserver | None) -> None:
        self.moved: list[dict[str, int]] = [{"demote": 0, "promote": 0} for _ in locations]
        self._locations = locations
        self._observer = observer

    def report(self, number: int, direction: str, payloads: Sequence[Sized], seconds: float) -> None:
        if not payloads:
            return
        self.moved[number][direction] += len(payloads)
        if self._observer is not None:
            num_bytes = sum(map(len, payloads))
            stats = TransferStats(self._locations[number], direction, len(payloads), num_bytes, seconds)
            self._observer.on_transfer(stats)
