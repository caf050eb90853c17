"""Fetch: the blocks of one prompt that are looked for in the tiers, and what of them has arrived."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

TokenIds = tuple[int, ...]
Payload = memoryview


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Of a block, or `windowed`: of its part for the layers that see a window only."""

    key: bytes
    windowed: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What tier number `tier` said to all keys; empty: it did not say."""

    tier: int
    known: Sequence[bool]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Block number `index` of the prompt, from tier number `tier`: what of it was asked for."""

    index: int
    tier: int
    full: Payload | None = None
    window: Payload | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """Blocks from `first` on, None where one could not be had; `time` by the tiers' clock."""

    first: int
    blocks: Sequence[Loaded | None]
    time: float


class Fetch:
    """Blocks are counted from the beginning of the prompt; `start` is the first whose key was looked for.

    Blocks up to `end` are in some tier, those from `asked` on were asked for, those from `lowest` on have arrived.
    Where layers see a window only, what follows `num_blocks` of them sees parts from block `first_seen(num_blocks)` on:
    `first` for `end`, under `window_keys`. The others need none; nothing is loaded of them if every layer has one
    (`has_full` False).
    `looking`: numbers of tiers that have not answered yet; `source`: of the one that each block up to `end` comes from.
    `broken`: one of those that were asked for could not be had, so that nothing before it is of use.
    The tiers' threads add to `inbox` and read; all else is the engine's.
    """

    def __init__(
        self,
        start: int,
        keys: Sequence[bytes],
        blocks: Sequence[TokenIds],
        time: float,
        *,
        window_keys: Sequence[bytes] = (),
        first_seen: Callable[[int], int] = lambda num_blocks: num_blocks,
        has_full: bool = True,
    ) -> None:
        self.start, self.keys, self.blocks = start, keys, blocks
        self.front = start
        self.cancelled = False
        self.inbox: deque[Answer | Arrival] = deque()
        self.looking: set[int] = set()
        self.source: list[int] = []
        self.end = self.asked = self.lowest = self.first = start
        self.settled = False
        self.broken = False
        self.begun = self.since = time  # `since`: of the last progress
        self._first_seen, self._has_full = first_seen, has_full
        self._window_keys = window_keys
        self._arrived: dict[int, Loaded | None] = {}
        self._answers: dict[int, Sequence[bool]] = {}

    @property
    def all_keys(self) -> list[bytes]:
        """What the tiers are asked for: an answer says as much."""
        return [*(self.keys if self._has_full else ()), *self._window_keys]

    def records(self, index: int) -> list[RecordKey]:
        """What has to be loaded of a block."""
        place = index - self.start
        records = [RecordKey(self.keys[place])] if self._has_full else []
        return [*records, RecordKey(self._window_keys[place], windowed=True)] if index >= self.first else records

    def tokens(self, index: int) -> TokenIds:
        return self.blocks[index - self.start]

    @property
    def floor(self) -> int:
        """The first block that is worth asking for."""
        return max(self._least, self.front)

    @property
    def missing(self) -> int:
        """Blocks between the computed and the loaded ones."""
        return max(0, self.lowest - self.front)

    @property
    def in_flight(self) -> int:
        """Blocks that were asked for and not taken yet."""
        return 0 if self.broken else max(0, self.lowest - self.asked)

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
                self._arrived |= dict(enumerate(message.blocks, message.first))

    def settle(self, time: float) -> None:
        """All tiers that are to answer have: the longest prefix that one or another has, each block from the first."""
        self.settled = True
        self.looking.clear()
        self.end = self.asked = self.lowest = self._reach()
        self.first = self._first_seen(self.end)
        wanted = [max(index, self._least) for index in range(self.start, self.end)]
        self.source = [self._tier(index, windowed=index >= self.first) or 0 for index in wanted]
        self.since = time
        for index in range(self.start, self._least):
            self._arrived[index] = Loaded(index, self.source[index - self.start])

    @property
    def _least(self) -> int:
        """The first block that has records to be loaded."""
        return self.start if self._has_full else max(self.start, self.first)

    def _reach(self) -> int:
        """Like WindowPool.reach: all blocks before it are there, and the parts that are seen from it."""
        end, last = self.start, self.start + len(self.keys)
        while end < last and self._tier(end, windowed=False) is not None:
            end += 1
        first = self._first_seen(end)
        for index in range(end - 1, self.start - 1, -1):
            if index < first:
                break
            if self._tier(index, windowed=True) is None:
                end, first = index, self._first_seen(index)
        return end

    def _tier(self, index: int, *, windowed: bool) -> int | None:
        """The first that has all that is wanted of a block."""
        place, num_full = index - self.start, len(self.keys) if self._has_full else 0
        places = [*([place] if self._has_full else ()), *([num_full + place] if windowed else ())]
        having = (tier for tier, known in sorted(self._answers.items()) if known and all(known[at] for at in places))
        return next(having, None)

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
