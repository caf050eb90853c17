"""LastUse: cached blocks in the order of their last use, kept so that a use itself costs nothing."""

import heapq
from collections.abc import Iterator
from itertools import count

from openai_kv.cache.block import Block
from openai_kv.cache.policy import BlockInfo

Entry = tuple[float, int, int, Block, BlockInfo]


class LastUse:
    """A block is put in once, when it is cached; its entry moves on when it comes up and was used since.

    Blocks that were used together come deepest first. `num_blocks` bounds what is remembered of blocks that are gone.
    """

    def __init__(self, num_blocks: int) -> None:
        self._heap: list[Entry] = []
        self._limit = 2 * num_blocks + 16
        self._sequence = count()

    def add(self, block: Block, time: float) -> None:
        """`block` was used at `time`, or is to be left alone as if it had been."""
        heapq.heappush(self._heap, (time, -block.depth, next(self._sequence), block, block.info))
        if len(self._heap) > self._limit:
            self._heap = [entry for entry in self._heap if _is_current(entry)]
            heapq.heapify(self._heap)

    def before(self, time: float) -> Iterator[Block]:
        """Takes out the blocks whose last use was at `time` or before, one by one."""
        while self._heap and self._heap[0][0] <= time:
            entry = heapq.heappop(self._heap)
            block = entry[3]
            if not _is_current(entry):
                continue
            if block.last_accessed_time > entry[0]:
                self.add(block, block.last_accessed_time)
            else:
                yield block


def _is_current(entry: Entry) -> bool:
    """Whether the block still holds the content that was put in."""
    return entry[3].info is entry[4]
