"""The arithmetic of two groups that share a memory budget."""

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Blocks of the full group, and of the window group with its null block; 0: there is no such group."""

    num_blocks: int
    num_window_blocks: int = 0


@dataclass(frozen=True, slots=True)
class PoolShares:
    """How blocks are shared out. `full_bytes`, `window_bytes`: of a block over the layers of each group.

    The window group gets `share` blocks for each one of the full group, and never less than what lets the longest
    request run alone: its window, the `step_tokens` of a step and a block for their ends, beside what may be pinned of
    it for good (`max_pinned_fraction`). It needs no more than the full group has: a block has one part there.
    `beside`: bytes that pools have beside their blocks.
    """

    block_size: int
    full_bytes: int
    window_bytes: int = 0
    window: int = 0
    share: float = 0.25
    step_tokens: int = 512
    max_pinned_fraction: float = 0.0
    beside: int = 0

    def num_parts(self, num_tokens: int, step_tokens: int | None = None) -> int:
        """Window blocks that a request of `num_tokens` tokens holds at most, in steps of so many."""
        step = self.step_tokens if step_tokens is None else step_tokens
        return min(-(-num_tokens // self.block_size), -(-(self.window + step) // self.block_size) + 1)

    def sizes(self, num_blocks: int) -> PoolSizes:
        """What goes with so many blocks of the full group."""
        if not self.window:
            return PoolSizes(num_blocks)
        least = ceil(round(self.num_parts(num_blocks * self.block_size) / (1 - self.max_pinned_fraction), 6))
        return PoolSizes(num_blocks, min(num_blocks, max(least, ceil(round(self.share * num_blocks, 6)))) + 1)

    def nbytes(self, sizes: PoolSizes) -> int:
        return sizes.num_blocks * self.full_bytes + sizes.num_window_blocks * self.window_bytes + self.beside

    def fitting(self, budget: int) -> PoolSizes:
        """The largest pools that `budget` bytes hold; they may have no block at all.

        Where every layer has a window, a block of the full group is an entry in the books and takes no bytes.
        """
        most = budget // self.full_bytes if self.full_bytes else int(budget // self.window_bytes / self.share) + 1
        num_blocks = bisect_right(range(1, most + 1), budget, key=lambda count: self.nbytes(self.sizes(count)))
        return self.sizes(num_blocks)
