"""Promise: what one request may get from the tiers, and what of it has come true."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from openai_kv.cache.hit import CacheHit
from openai_kv.request import Request, RequestStatus
from openai_kv.tiers.fetch import Fetch, Loaded, Payload


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request was admitted with `hit`; then `promoted` tokens came from tiers, by location, the last before `end`."""

    hit: CacheHit
    promoted: Mapping[str, int]
    end: int


class Promise:
    """`hit` is what `request` was admitted with; `fetch` the blocks that were looked for behind what the cache had.

    While it runs, blocks are taken from the back and computed from the front, until both have met.
    """

    def __init__(self, request: Request, fetch: Fetch, block_size: int) -> None:
        self.request, self.fetch = request, fetch
        self.hit: CacheHit | None = None
        self.is_follower = False  # another one gets the same blocks
        self._size = block_size
        self._promoted: dict[str, int] = {}
        self._locations: dict[int, str] = {}  # of what was taken
        self._parts: dict[int, Payload] = {}  # of the window group, kept until there is no gap before them

    @property
    def rank(self) -> tuple[bool, tuple[int, float]]:
        """Smaller for one that gets its blocks earlier: those that run, then in the order of the queue."""
        return self.request.status is not RequestStatus.RUNNING, self.request.order

    @property
    def is_open(self) -> bool:
        """Something may still come."""
        return not self.fetch.settled or self.fetch.end > self.fetch.start

    def take(self, locations: Sequence[str]) -> list[Loaded]:
        """What has arrived and is not computed; `locations` by the numbers of the tiers."""
        fetch = self.fetch
        fetch.front = self.request.num_computed_tokens // self._size
        fetch.read_inbox()
        loaded = [each for each in fetch.take() if each.index >= fetch.front]
        self._locations |= {each.index: locations[each.tier] for each in loaded}
        self._parts |= {each.index: each.window for each in loaded if each.window is not None}
        return loaded

    @property
    def meeting(self) -> int | None:
        """How many tokens are there once what was taken is written; None: there is a gap, or it adds nothing."""
        fetch = self.fetch
        is_gap = not self._locations or fetch.missing or fetch.front >= fetch.end
        return None if is_gap else fetch.end * self._size

    def meet(self) -> dict[int, Payload]:
        """It goes on behind what was taken: the parts, by block, that are still to be written to the window group."""
        fetch, computed = self.fetch, self.request.num_computed_tokens
        for index in range(fetch.front, fetch.end):
            tokens = self._size - computed % self._size if index == fetch.front else self._size
            location = self._locations[index]
            self._promoted[location] = self._promoted.get(location, 0) + tokens
        parts = {index: part for index, part in self._parts.items() if index >= fetch.front}
        fetch.front = fetch.end
        self._parts.clear()
        return parts

    def limit(self, most: int, num_to_compute: Callable[[Fetch], int]) -> int:
        """How many more tokens, `most` of them, to compute now, by the number of blocks that are worth it; 0: wait.

        What is computed now need not be loaded.
        """
        fetch, computed = self.fetch, self.request.num_computed_tokens
        tokens = most
        if fetch.settled and fetch.end > fetch.front:
            blocks = fetch.missing if fetch.complete else num_to_compute(fetch)
            if fetch.front + blocks < fetch.end:
                tokens = min(most, (fetch.front + blocks) * self._size - computed) if blocks else 0
        fetch.front = max(fetch.front, (computed + tokens) // self._size)
        return tokens

    def outcome(self) -> Outcome | None:
        """Once nothing can be added any more."""
        fetch = self.fetch
        last = fetch.end if fetch.settled else fetch.start + len(fetch.keys)
        if self.hit is None or self.request.num_computed_tokens < last * self._size:
            return None
        return Outcome(self.hit, self._promoted, fetch.end * self._size if self._promoted else 0)
