"""How often guesses came true lately, by kind, in one request and in all."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

FIRST_RATE = 0.5  # before anything is known
WEIGHT = 2.0  # guesses in all requests together count like so many in this one
REQUEST_MEMORY, OVERALL_MEMORY = 20, 200  # guesses; what is older fades
MOST = 0.98  # nothing is certain


@dataclass(slots=True)
class Tally:
    """Guessed tokens that came and that did not; the older, the less they count."""

    right: float = 0.0
    tried: float = 0.0

    def add(self, right: int, tried: int, memory: int) -> None:
        fading = (1 - 1 / memory) ** tried
        self.right = self.right * fading + right
        self.tried = self.tried * fading + tried

    def rate(self, before: float) -> float:
        """`before`: what is believed while there is little here."""
        return (self.right + WEIGHT * before) / (self.tried + WEIGHT)


Tallies = defaultdict[str, Tally]


def no_tallies() -> Tallies:
    return defaultdict(Tally)


@dataclass(slots=True)
class Acceptance:
    """`overall`: in all requests; a request's own are handed in."""

    overall: Tallies = field(default_factory=no_tallies)

    def add(self, own: Tallies, kind: str, guessed: Sequence[int], said: Sequence[int]) -> None:
        """The first token that is wrong ends it: what is behind that one was guessed on a false assumption."""
        pairs = list(zip(guessed, said, strict=False))
        right = next((index for index, (guess, token) in enumerate(pairs) if guess != token), len(pairs))
        tried = min(right + 1, len(pairs))
        own[kind].add(right, tried, REQUEST_MEMORY)
        self.overall[kind].add(right, tried, OVERALL_MEMORY)

    def rate(self, own: Tallies, kind: str) -> float:
        """The chance that the next token of such a guess comes if all before it did."""
        return min(MOST, own[kind].rate(self.overall[kind].rate(FIRST_RATE)))
