"""learned: an online model of when blocks are used again, from traits as factors; no training set.

Proportional hazards (Cox 1972) fitted by standardized ratios: a factor is how often blocks that have it were used, over
how often the rest of the model expected it. As in LRB (Song et al., NSDI 2020) what was evicted teaches too.
"""

from collections import defaultdict
from collections.abc import Callable
from math import prod

from openai_kv.cache.hit_density import HitDensityPolicy
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.cache.reuse import NUM_BINS, Traits
from openai_kv.hookspecs import hookimpl

Factor = tuple[object, ...]
PRIOR, SURE = 0.02, 0.95
EPOCH = 5  # bins of idle time in which a trait has the same factor
FADE_EVERY = 2**17  # lessons


class HazardModel:
    """The hazard in a bin of idle time is the bin's own, times a factor for each trait, which may change with time.

    `weight`: how many expected uses it takes to believe a factor by half.
    """

    def __init__(self, weight: float) -> None:
        self._weight = weight
        self._used: defaultdict[Factor, float] = defaultdict(float)
        self._expected: defaultdict[Factor, float] = defaultdict(float)
        self._learned = 0

    def came(self, traits: Traits, age_bin: int) -> None:
        factors = factors_of(traits, age_bin)
        ratios = [self._ratio(factor) for factor in factors]
        hazard = min(PRIOR * prod(ratios), SURE)
        for factor, ratio in zip(factors, ratios, strict=True):
            self._expected[factor] += hazard / ratio
        self._learned += 1
        if self._learned % FADE_EVERY == 0:
            self._fade()

    def used(self, traits: Traits, age_bin: int) -> None:
        for factor in factors_of(traits, age_bin):
            self._used[factor] += 1

    def hazards(self, traits: Traits) -> list[float]:
        each = (prod(map(self._ratio, factors_of(traits, age_bin))) for age_bin in range(NUM_BINS))
        return [min(PRIOR * ratio, SURE) for ratio in each]

    def _ratio(self, factor: Factor) -> float:
        return (self._used.get(factor, 0) + self._weight) / (self._expected.get(factor, 0) + self._weight)

    def _fade(self) -> None:
        """What was long ago counts half."""
        for counts in (self._used, self._expected):
            for factor in counts:
                counts[factor] /= 2


def factors_of(traits: Traits, age_bin: int) -> tuple[Factor, ...]:
    epoch = age_bin // EPOCH
    return (
        (age_bin,),
        (epoch, "hits", traits.kind, traits.hits, traits.is_last),
        (epoch, "turn", traits.turn),
        (epoch, "new", traits.new),
        (epoch, "length", traits.length),
    )


class LearnedPolicy(HitDensityPolicy):
    """Keeps what the model says has most hits to come per second; what it takes for one-shot goes at once."""

    name = "learned"

    def __init__(self, weight: float = 4, seed: int = 0) -> None:
        if weight <= 0:
            raise ValueError("weight is not above 0")
        super().__init__(HazardModel(weight), seed)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(LearnedPolicy)
