"""What a look-up found, and what a reset freed."""

from dataclasses import dataclass
from enum import StrEnum

from openai_kv.cache.block import Block


class HitKind(StrEnum):
    EXACT = "exact"
    RADIX = "radix"
    PARTIAL = "partial"
    MISS = "miss"


@dataclass(frozen=True, slots=True)
class CacheHit:
    """The first `num_tokens` tokens are cached; good until the cache changes.

    `blocks` are whole and shared by reference; the first `tail_tokens` slots of `tail` are to be copied. An EXACT hit
    has all tokens and the `hidden_slot` of the last; RADIX ends at a block boundary, PARTIAL inside a block.
    """

    kind: HitKind
    num_tokens: int
    blocks: tuple[Block, ...]
    tail: Block | None
    tail_tokens: int
    hidden_slot: int | None

    @property
    def matched(self) -> tuple[Block, ...]:
        """The whole blocks and the tail."""
        return self.blocks if self.tail is None else (*self.blocks, self.tail)


NOTHING = CacheHit(HitKind.MISS, 0, (), None, 0, None)


@dataclass(frozen=True, slots=True)
class ResetResult:
    """Blocks that are free now and were not, and blocks that running requests (and pins) keep."""

    freed_blocks: int
    kept_blocks: int
