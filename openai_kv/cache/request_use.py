"""RequestUse: what one request did with the chain of blocks it used, put together from the hooks a policy hears."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from openai_kv.cache.reuse import Traits

if TYPE_CHECKING:
    from openai_kv.cache.policy import BlockInfo

MAX_TURN = 3


@dataclass(frozen=True, slots=True)
class UsedBlock:
    key: int
    hits: int


@dataclass(slots=True, eq=False)
class RequestUse:
    """`length` blocks, of which `known` had been used before, at last by `before`. Complete once it is `closed`.

    The turn is the hint's, or counted: it goes up when a request takes all full blocks of an earlier one.
    """

    kind: str
    turn: int
    known: int
    length: int = 0
    before: RequestUse | None = None
    blocks: list[UsedBlock] = field(default_factory=list)
    closed: bool = False

    def extend(self, block: BlockInfo, before: RequestUse | None) -> None:
        """The next block, and who used it before."""
        if block.depth < self.length:
            self.blocks.pop()  # that one was only copied from
        self.blocks.append(UsedBlock(block.key, block.hit_count))
        self.length = block.depth + 1
        if before is None:
            self.known = min(self.known, block.depth)
        else:
            self.known, self.before = self.length, before

    def close(self) -> list[UsedBlock]:
        """The request is over; its blocks, root first, are not kept."""
        self.closed = True
        self.turn = max(self.turn, self._counted_turn())
        blocks, self.blocks, self.before = self.blocks, [], None
        return blocks

    def _counted_turn(self) -> int:
        before = self.before
        if before is None or 2 * self.known < before.length:
            return 1
        return before.turn + (self.known >= before.length - 1)

    def traits(self, depth: int, hits: int) -> Traits:
        """Of the block at `depth`."""
        return Traits(
            kind=self.kind,
            hits=min(hits.bit_length(), 3),
            is_last=depth == self.length - 1,
            turn=min(self.turn, MAX_TURN),
            new=(self.length - self.known).bit_length(),
            length=self.length.bit_length(),
        )


class UseTracker:
    """Tells which request a block belongs to. Requests may run side by side: each waits for the block it needs next."""

    def __init__(self) -> None:
        self._uses: dict[BlockInfo, RequestUse] = {}
        self._waiting: dict[int, RequestUse] = {}

    def __getitem__(self, block: BlockInfo) -> RequestUse:
        return self._uses[block]

    def matched(self, block: BlockInfo, before: RequestUse | None) -> None:
        """A look-up matched it, as it does from the root on. `before`: who used it last, if that is not known here."""
        use = self._new(block) if block.is_first_block else self._next(block)
        self._extend(use, block, before or self._uses[block])

    def inserted(self, block: BlockInfo, before: RequestUse | None) -> None:
        """It is new here. `before`: who used it when it was cached earlier."""
        self._extend(self._next(block), block, before)

    def forget(self, block: BlockInfo) -> None:
        del self._uses[block]

    def _next(self, block: BlockInfo) -> RequestUse:
        """Who waits for this block, or has matched only the beginning of one in its place."""
        for length in (block.depth, block.depth + 1):
            use = self._waiting.pop(length, None)
            if use is not None and not use.closed:
                return use
        return self._new(block)

    def _new(self, block: BlockInfo) -> RequestUse:
        return RequestUse(block.kind, block.turn, known=block.depth)

    def _extend(self, use: RequestUse, block: BlockInfo, before: RequestUse | None) -> None:
        use.extend(block, before)
        self._uses[block] = self._waiting[use.length] = use
