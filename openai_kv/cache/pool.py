"""BlockPool: the blocks 0 .. num_blocks - 1, who is free, and how many are in which state."""

from openai_kv.cache.block import Block


class BlockPool:
    """A block is free (on the free list), referenced (`ref_count > 0`) or cached (neither).

    References and pins are taken here and nowhere else, so every count is O(1).
    """

    def __init__(self, num_blocks: int) -> None:
        self.blocks = tuple(Block(block_id) for block_id in range(num_blocks))
        self._free = list(reversed(self.blocks))
        self.num_referenced = 0
        self.num_pinned = self.num_soft_pinned = 0
        self.num_pinned_idle = 0  # pinned and not referenced

    @property
    def num_blocks(self) -> int:
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self.num_blocks - self.num_free - self.num_referenced

    @property
    def num_evictable(self) -> int:
        """Cached blocks that can go, leaf by leaf: ancestors of what is referenced or pinned are so themselves."""
        return self.num_cached - self.num_pinned_idle

    @property
    def utilization(self) -> float:
        return 1 - self.num_free / self.num_blocks

    @property
    def free_blocks(self) -> tuple[Block, ...]:
        return tuple(self._free)

    def allocate(self, count: int) -> list[Block] | None:
        """`count` free blocks with one reference each; all or nothing (None)."""
        if count > self.num_free:
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self.acquire(block)
        return taken

    def acquire(self, block: Block) -> None:
        if block.ref_count == 0:
            self.num_referenced += 1
            self.num_pinned_idle -= block.pin_count > 0
        block.acquire()

    def release(self, block: Block) -> bool:
        """Give one reference back; True: that was the last one, and the block is cached or to be freed."""
        block.release()
        if block.ref_count == 0:
            self.num_referenced -= 1
            self.num_pinned_idle += block.pin_count > 0
        return block.ref_count == 0

    def pin(self, block: Block) -> None:
        self.num_pinned += block.pin_count == 0
        self.num_pinned_idle += block.pin_count == 0 and block.ref_count == 0
        block.pin_count += 1

    def unpin(self, block: Block) -> None:
        assert block.pin_count > 0, f"block {block.block_id} unpinned once too often"
        block.pin_count -= 1
        self.num_pinned -= block.pin_count == 0
        self.num_pinned_idle -= block.pin_count == 0 and block.ref_count == 0

    def pin_softly(self, block: Block) -> None:
        self.num_soft_pinned += block.soft_count == 0
        block.soft_count += 1

    def unpin_softly(self, block: Block) -> None:
        assert block.soft_count > 0, f"block {block.block_id} unpinned once too often"
        block.soft_count -= 1
        self.num_soft_pinned -= block.soft_count == 0

    def free(self, block: Block) -> None:
        """Put an unreferenced block, already out of every index, back on the free list."""
        assert block.ref_count == block.pin_count == block.soft_count == block.window_id == 0, f"{block} is in use"
        assert block.node is None, f"{block} is cached"
        block.clear()
        self._free.append(block)
