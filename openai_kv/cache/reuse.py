"""What models of reuse speak of: traits of a block, bins of idle time, hazards, and hits per block and second."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

NUM_BINS = 19
BIN_RATIO = 1.6
EDGES = tuple(BIN_RATIO**power for power in range(NUM_BINS - 1))  # seconds: 1 to 2,951
WIDTHS = (EDGES[0], *(end - start for start, end in pairwise(EDGES)), EDGES[-1])


def bin_of(idle: float) -> int:
    """The bin of so many seconds without use; the last one has no end."""
    return bisect_right(EDGES, idle)


class Traits(NamedTuple):
    """Of a block, and of the request that used it last. `new` and `length` of its chain are in powers of two.

    `hits`: 0, 1, 2 to 3, or more look-ups that matched the block. `is_last`: the chain's last block, mostly partial.
    """

    kind: str
    hits: int
    is_last: bool
    turn: int
    new: int
    length: int


class ReuseModel(Protocol):
    """Learns from watched blocks how likely blocks of some traits are used in a bin of idle time, if not before."""

    def came(self, traits: Traits, age_bin: int) -> None:
        """A watched block with these traits has been idle for so long that it comes into the bin."""

    def used(self, traits: Traits, age_bin: int) -> None:
        """And now, still in that bin, it is used."""

    def hazards(self, traits: Traits) -> list[float]:
        """One for each bin, all below 1."""


def hit_density(hazards: Sequence[float]) -> list[float]:
    """For each bin, the hits to be had per second of keeping a block from there on, if one stops at the best time.

    It is the Gittins index (1979) of a job that ends with the hit: in one pass from the end, a bin takes in what comes
    after it as long as that has more hits per second. Hit density is the word of LHD (Beckmann et al., NSDI 2018).
    """
    densities = [0.0] * len(hazards)
    # Hits, seconds and share left of each run of bins, the next one on top.
    later: list[tuple[float, float, float]] = []
    for at in range(len(hazards) - 1, -1, -1):
        hits, left = hazards[at], 1 - hazards[at]
        seconds = WIDTHS[at] * (1 + left) / 2
        while later and later[-1][0] * seconds >= hits * later[-1][1]:
            more, longer, rest = later.pop()
            hits, seconds, left = hits + left * more, seconds + left * longer, left * rest
        later.append((hits, seconds, left))
        densities[at] = hits / seconds
    return densities
