"""ReuseWatch: follows a few blocks of each request, cached or not, and tells a model when they are used again."""

from collections import deque
from dataclasses import dataclass

from openai_kv.cache.request_use import RequestUse
from openai_kv.cache.reuse import EDGES, NUM_BINS, ReuseModel, Traits, bin_of


@dataclass(slots=True, eq=False)
class Probe:
    """A watched block; `age_bin` is what it has come to, `open` until it is used, forgotten or replaced."""

    key: int
    traits: Traits
    use: RequestUse
    since: float
    age_bin: int = 0
    open: bool = True


class ReuseWatch:
    """At most `limit` blocks; the oldest is forgotten first.

    As it does not matter whether a block is still cached, what the model learns is not bent by what the policy keeps:
    a policy that wrongly evicts early finds out. Blocks count as far as they have come (Kaplan and Meier 1958).
    """

    def __init__(self, model: ReuseModel, limit: int) -> None:
        self._model, self._limit = model, limit
        self._now = float("-inf")
        self._probes: dict[int, Probe] = {}
        self._bins: list[deque[Probe]] = [deque() for _ in range(NUM_BINS - 1)]

    def add(self, key: int, traits: Traits, use: RequestUse, now: float) -> None:
        self._drop(key)
        probe = self._probes[key] = Probe(key, traits, use, now)
        self._bins[0].append(probe)
        self._model.came(traits, 0)
        if len(self._probes) > self._limit:
            self._drop(next(iter(self._probes)))

    def used(self, key: int, now: float) -> RequestUse | None:
        """A request wants the block: whose it was, if it is watched."""
        probe = self._drop(key)
        if probe is None:
            return None
        last = bin_of(now - probe.since)
        for age_bin in range(probe.age_bin + 1, last + 1):
            self._model.came(probe.traits, age_bin)
        self._model.used(probe.traits, last)
        return probe.use

    def advance(self, now: float) -> None:
        """Time may have passed."""
        if now == self._now:
            return
        self._now = now
        for age_bin, probes in enumerate(self._bins):
            while probes and (not probes[0].open or now - probes[0].since >= EDGES[age_bin]):
                probe = probes.popleft()
                if probe.open:
                    self._pass(probe)

    def _pass(self, probe: Probe) -> None:
        probe.age_bin += 1
        self._model.came(probe.traits, probe.age_bin)
        if probe.age_bin < len(self._bins):
            self._bins[probe.age_bin].append(probe)

    def _drop(self, key: int) -> Probe | None:
        probe = self._probes.pop(key, None)
        if probe is not None:
            probe.open = False
        return probe
