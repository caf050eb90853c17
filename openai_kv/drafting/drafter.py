"""Drafter: decides which guesses get a row in the next step, so that tokens come faster than without."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from openai_kv.drafting.acceptance import Acceptance
from openai_kv.drafting.track import Guess, Source, Track
from openai_kv.request import Request

MOST_SAMPLED = 64  # rows with logits in a step that has drafts: memory for as many is always set aside
WORTH = 1.03  # what is gained has to be more than chance


@dataclass(frozen=True, slots=True)
class StepSize:
    """A step without drafts: its rows, those of them that say a token, and how many rows more it may have."""

    rows: int
    sampled: int
    budget: int


@dataclass(frozen=True, slots=True)
class _Row:
    track: Track
    chance: float


class Drafter:
    """One thread. `propose` before a step, `observe` for each request after it, `forget` at a request's end.

    `seconds`: what a step of so many rows takes. A draft has at most `longest` tokens.
    """

    def __init__(self, sources: Sequence[Source], seconds: Callable[[int], float], longest: int) -> None:
        self._sources = sources
        self._seconds = seconds
        self._longest = longest
        self._acceptance = Acceptance()
        self._tracks: dict[str, Track] = {}

    def propose(self, room: Mapping[Request, int], size: StepSize) -> dict[Request, Sequence[int]]:
        """For decoding requests, with room for so many tokens each, the drafts that pay."""
        rows = [row for request, tokens in room.items() for row in self._rows(request, tokens)]
        rows.sort(key=lambda row: row.chance, reverse=True)
        lengths: dict[Track, int] = {}
        for row in rows[: self._best_number([row.chance for row in rows], size)]:
            lengths[row.track] = lengths.get(row.track, 0) + 1
        return {track.request: track.guess.token_ids[:length] for track, length in lengths.items() if track.guess}

    def _rows(self, request: Request, room: int) -> list[_Row]:
        """A row counts only if all guesses before it come true."""
        track = self._tracks.setdefault(request.request_id, Track(request))
        track.guess = self._guess(track, min(room, self._longest))
        if track.guess is None:
            return []
        rate = self._acceptance.rate(track.tallies, track.guess.kind)
        return [_Row(track, rate**number) for number in range(1, len(track.guess.token_ids) + 1)]

    def _guess(self, track: Track, length: int) -> Guess | None:
        """That of the first source which has an idea."""
        if length <= 0:
            return None
        guesses = (source(track, length) for source in self._sources)
        return next((guess for guess in guesses if guess is not None), None)

    def _best_number(self, chances: Sequence[float], size: StepSize) -> int:
        """How many of the likeliest rows give most tokens a second; 0 if that is hardly more than without."""
        most = max(0, min(len(chances), size.budget, MOST_SAMPLED - size.sampled))
        tokens = accumulate(chances[:most], initial=float(size.sampled))
        speeds = [count / self._seconds(size.rows + more) for more, count in enumerate(tokens)]
        best = max(range(len(speeds)), key=speeds.__getitem__)
        return best if speeds[best] > WORTH * speeds[0] else 0

    def observe(self, request_id: str, token_ids: Sequence[int]) -> None:
        """What the request said in this step: it tells of the guess as far as it reaches, drafted or not."""
        track = self._tracks.get(request_id)
        if track is None or track.guess is None:
            return
        pairs = list(zip(track.guess.token_ids, token_ids, strict=False))
        right = next((index for index, (guessed, said) in enumerate(pairs) if guessed != said), len(pairs))
        self._acceptance.add(track.tallies, track.guess.kind, right, min(right + 1, len(pairs)))
        track.guess = None

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._tracks.pop(request_id, None)
