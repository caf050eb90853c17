"""wa: workload-aware eviction, after "KVCache Cache in the Wild" (Wang et al., USENIX ATC 2025)."""

from collections.abc import Callable, Iterator

from openai_kv.cache.hit_density import HitDensityPolicy
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.cache.reuse import NUM_BINS, Traits
from openai_kv.hookspecs import hookimpl

Category = tuple[object, ...]
PRIOR = 0.02  # a hazard for each bin of idle time: as bins grow, less and less a second, which is LRU
SURE = 0.95
NOTHING = (0.0,) * NUM_BINS
FADE_EVERY = 2**17  # lessons


class CategoryModel:
    """Counts by category how many watched blocks came to a bin of idle time and how many were used in it."""

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._came: dict[Category, list[float]] = {}
        self._used: dict[Category, list[float]] = {}
        self._learned = 0

    def came(self, traits: Traits, age_bin: int) -> None:
        for category in categories(traits):
            self._came.setdefault(category, [0.0] * NUM_BINS)[age_bin] += 1
        self._learned += 1
        if self._learned % FADE_EVERY == 0:
            self._fade()

    def used(self, traits: Traits, age_bin: int) -> None:
        for category in categories(traits):
            self._used.setdefault(category, [0.0] * NUM_BINS)[age_bin] += 1

    def _fade(self) -> None:
        """What was long ago counts half."""
        for counts in (*self._came.values(), *self._used.values()):
            counts[:] = [count / 2 for count in counts]

    def hazards(self, traits: Traits) -> list[float]:
        """The finer category counts as far as it has data, then the one around it."""
        hazards, weight = [PRIOR] * NUM_BINS, self._weight
        for category in categories(traits):
            if category in self._came:
                counts = zip(self._used.get(category, NOTHING), self._came[category], hazards, strict=True)
                hazards = [min((used + weight * prior) / (came + weight), SURE) for used, came, prior in counts]
        return hazards


def categories(traits: Traits) -> Iterator[Category]:
    """From the widest to the narrowest; what is hit often is one category, whoever used it last."""
    kind, hits, is_last, turn, new, _ = traits
    path = (kind, hits) if hits == 3 else (kind, hits, is_last, turn, new)
    for length in range(len(path) + 1):
        yield path[:length]


class WorkloadAwarePolicy(HitDensityPolicy):
    """Counts reuse by category: kind of request, hits of the block, last of its chain or not, turn, new blocks.

    `weight`: how many watched blocks it takes to believe a category by half. The paper fits an exponential distribution
    by category and goes by the probability of reuse within the cache's lifetime; here the distribution is as counted,
    and the time to keep a block the one that pays best.
    """

    name = "wa"

    def __init__(self, weight: float = 20, seed: int = 0) -> None:
        if weight <= 0:
            raise ValueError("weight is not above 0")
        super().__init__(CategoryModel(weight), seed)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(WorkloadAwarePolicy)
