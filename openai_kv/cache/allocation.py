"""What the manager keeps for one request: its block table, and which prompt tokens it has stored."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from openai_kv.cache.block import Block
from openai_kv.request import RequestInfo


@dataclass(slots=True)
class WriteCount:
    """Prompt tokens newly stored by one request, over all its preemptions.

    Positions below `mark` are settled: hit, stored, or found stored by somebody else. Each is counted once at most.
    """

    mark: int = 0
    tokens: int = 0

    def settle(self, end: int) -> None:
        """Positions before `end` are in the tree, and not by this request's doing."""
        self.mark = max(self.mark, end)

    def store(self, end: int, num_prompt_tokens: int) -> None:
        """Positions from `mark` to `end` are in the tree now because of this request."""
        self.tokens += max(0, min(end, num_prompt_tokens) - self.mark)
        self.settle(end)


@dataclass(slots=True, eq=False)
class Allocation:
    """The block table of a running request, with room for `num_tokens`.

    The first `num_cached` blocks are the tree's own chain. `detached`: the cache was reset meanwhile, and what this
    request computes on top of older blocks stays private. `window_ids` are the blocks' window parts as far as they are
    needed by now; before `window_start` they are behind the window and 0. Numbers are in arrays: each step copies them
    and makes tensors of them.
    """

    info: RequestInfo
    written: WriteCount
    num_cached: int
    blocks: list[Block] = field(default_factory=list)
    block_ids: "array[int]" = field(default_factory=partial(array, "i"))
    window_ids: "array[int]" = field(default_factory=partial(array, "i"))
    window_start: int = 0
    num_tokens: int = 0
    detached: bool = False

    def extend(self, blocks: Sequence[Block]) -> None:
        self.blocks.extend(blocks)
        self.block_ids.extend(block.block_id for block in blocks)

    @property
    def window_blocks(self) -> list[Block]:
        """Those whose window part it holds."""
        return self.blocks[self.window_start : len(self.window_ids)]

    def cut(self, count: int) -> list[Block]:
        """Keep the first `count` blocks; returns the others."""
        surplus = self.blocks[count:]
        del self.blocks[count:], self.block_ids[count:]
        return surplus

    def replace(self, index: int, block: Block) -> None:
        self.blocks[index] = block
        self.block_ids[index] = block.block_id
