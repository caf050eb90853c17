"""Fetch: the blocks of one prompt that are looked for in the tiers, and what of them has arrived."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

TokenIds = tuple[int, ...]
Payload = memoryview


@dataclass(frozen=True, slots=True)
class Answer:
    """What tier number `tier` said to all keys; empty: it did not say."""

    tier: int
    known: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Payloads of the blocks from `first` on, None where one could not be had; `time` by the tiers' clock."""

    tier: int
    first: int
    payloads: Sequence[Payload | None]
    time: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """Block number `index` of the prompt, from tier number `tier`."""

    index: int
    payload: Payload
    tier: int


class Fetch:
    """Blocks are counted from the beginning of the prompt; `start` is the first whose key was looked for.

    Blocks up to `end` are in some tier, those from `asked` on were asked for, those from `lowest` on have arrived.
    Only `inbox` and the reading of `front` and `cancelled` are the tiers' threads'; all else is the engine's.
    """

    def __init__(self, start: int, keys: Sequence[bytes], blocks: Sequence[TokenIds], time: float) -> None:
        self.start, self.keys, self.blocks = start, keys, blocks
        self.front = start
        self.cancelled = False
        self.inbox: deque[Answer | Arrival] = deque()
        self.looking: set[int] = set()
        self.source: list[int] = []
        self.end = self.asked = self.lowest = start
        self.settled = False
        self.broken = False
        self.begun = self.since = time  # `since`: of the last progress
        self._arrived: dict[int, Loaded | None] = {}
        self._answers: dict[int, Sequence[bool]] = {}

    def key(self, index: int) -> bytes:
        return self.keys[index - self.start]

    def tokens(self, index: int) -> TokenIds:
        return self.blocks[index - self.start]

    @property
    def missing(self) -> int:
        """Blocks between the computed and the loaded ones."""
        return max(0, self.lowest - self.front)

    @property
    def in_flight(self) -> int:
        """Blocks that were asked for and not taken yet."""
        return 0 if self.broken else self.lowest - self.asked

    @property
    def complete(self) -> bool:
        """Nothing more will come."""
        return self.settled and (self.broken or self.lowest <= max(self.front, self.start))

    def read_inbox(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            if isinstance(message, Answer):
                self._answers[message.tier] = message.known
                self.looking.discard(message.tier)
            else:
                self.since = max(self.since, message.time)
                self._arrive(message)

    def _arrive(self, arrival: Arrival) -> None:
        for index, payload in enumerate(arrival.payloads, arrival.first):
            self._arrived[index] = None if payload is None else Loaded(index, payload, arrival.tier)

    def settle(self, time: float) -> None:
        """All tiers that are to answer have: the run of blocks that one or another has, each from the first of them."""
        self.settled = True
        self.looking.clear()
        for place in range(len(self.keys)):
            found = [tier for tier, known in sorted(self._answers.items()) if known and known[place]]
            if not found:
                break
            self.source.append(found[0])
        self.end = self.asked = self.lowest = self.start + len(self.source)
        self.since = time

    def take(self) -> list[Loaded]:
        """What has arrived without a gap from the back, deepest first."""
        taken = []
        while not self.broken and self.lowest - 1 in self._arrived:
            loaded = self._arrived.pop(self.lowest - 1)
            if loaded is None:
                self.broken = True
                self._arrived.clear()
            else:
                self.lowest -= 1
                taken.append(loaded)
        return taken
