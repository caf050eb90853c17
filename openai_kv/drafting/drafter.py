"""Drafter: decides which guesses get a row in the next step, so that requests are faster than without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import log, log1p

from openai_kv.drafting.acceptance import MOST, Acceptance
from openai_kv.drafting.track import Guess, Source, Track
from openai_kv.request import Request

MOST_SAMPLED = 64  # rows with logits in a step that has drafts: memory for as many is always set aside
WORTH = log(1.03)  # for each request: what is gained has to be more than chance


@dataclass(frozen=True, slots=True)
class StepSize:
    """A step without drafts: its rows, those of them that say a token, and how many rows more it may have."""

    rows: int
    sampled: int
    budget: int


@dataclass(slots=True, eq=False)
class _Draft:
    """Each token comes with the chance `rate` if all before it did; the first `length` get a row."""

    request: Request
    token_ids: Sequence[int]
    rate: float
    length: int = 0

    @property
    def tokens(self) -> list[float]:
        """How many the request can expect of a step with 0, 1, 2 ... of the drafts: a draft counts if all before do."""
        return list(accumulate((self.rate**number for number in range(1, len(self.token_ids) + 1)), initial=1.0))

    @property
    def gains(self) -> list[float]:
        """By what each row speeds the request up, as a logarithm; falling."""
        return [log(more / less) for less, more in pairwise(self.tokens)]


class Drafter:
    """One thread. `propose` before a step, `observe` for each request after it, `forget` at a request's end.

    `seconds`: what a step of so many rows takes. A draft has at most `longest` tokens. No sources: no drafts.
    """

    def __init__(self, sources: Sequence[Source], seconds: Callable[[int], float], longest: int) -> None:
        self._sources = sources
        self._seconds = seconds
        self._longest = longest
        self._acceptance = Acceptance()
        self._tracks: dict[str, Track] = {}

    @property
    def has_sources(self) -> bool:
        return bool(self._sources)

    def may_pay(self, size: StepSize) -> bool:
        """Whether the likeliest drafts there are would be worth their rows in such a step."""
        return self.has_sources and self._best_number([log1p(MOST)] * MOST_SAMPLED, size) > 0

    def propose(self, room: Mapping[Request, int], size: StepSize) -> dict[Request, Sequence[int]]:
        """For decoding requests, with room for so many tokens each, the drafts that pay."""
        found = (self._best_draft(request, min(tokens, self._longest)) for request, tokens in room.items())
        drafts = [draft for draft in found if draft is not None]
        rows = [(gain, draft) for draft in drafts for gain in draft.gains]
        rows.sort(key=lambda row: row[0], reverse=True)
        for _, draft in rows[: self._best_number([gain for gain, _ in rows], size)]:
            draft.length += 1
        return {draft.request: draft.token_ids[: draft.length] for draft in drafts if draft.length}

    def _best_draft(self, request: Request, length: int) -> _Draft | None:
        track = self._tracks.setdefault(request.request_id, Track(request))
        track.guesses = self._guesses(track, length) if length > 0 else ()
        drafts = (_Draft(request, guess.token_ids, self._rate(track, guess)) for guess in track.guesses)
        return max(drafts, key=lambda draft: draft.tokens[-1], default=None)

    def _guesses(self, track: Track, length: int) -> tuple[Guess, ...]:
        guesses = (source(track, length) for source in self._sources)
        return tuple(guess for guess in guesses if guess is not None)

    def _rate(self, track: Track, guess: Guess) -> float:
        return self._acceptance.rate(track.tallies, guess.kind)

    def _best_number(self, gains: Sequence[float], size: StepSize) -> int:
        """How many of the rows to take, of those that gain most; 0 if the best is hardly better than none.

        A row speeds up one request and slows down all that the step has. The product of their speeds is what counts
        (proportional fairness, Kelly 1997): alone a request drafts a lot, and it does not hold up many others.
        """
        most = max(0, min(len(gains), size.budget, MOST_SAMPLED - size.sampled))
        gained = accumulate(gains[:most], initial=0.0)
        slower = (log(self._seconds(size.rows + more) / self._seconds(size.rows)) for more in range(most + 1))
        merits = [gain - size.sampled * loss for gain, loss in zip(gained, slower, strict=True)]
        best = max(range(most + 1), key=merits.__getitem__)
        return best if merits[best] > size.sampled * WORTH else 0

    def observe(self, request_id: str, token_ids: Sequence[int]) -> None:
        """What the request said in this step. Guesses without a row are told as well: learning costs nothing."""
        track = self._tracks.get(request_id)
        if track is not None:
            for guess in track.guesses:
                self._acceptance.add(track.tallies, guess.kind, guess.token_ids, token_ids)
            track.guesses = ()

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._tracks.pop(request_id, None)
