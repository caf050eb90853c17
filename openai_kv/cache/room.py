"""Room: whether the pools have enough for what a request wants next."""

from openai_kv.cache.allocation import Allocation
from openai_kv.cache.block_tables import BlockTables
from openai_kv.cache.hit import CacheHit
from openai_kv.cache.store import BlockStore


class Room:
    """Asks both pools, that of the window group only where there is one. `spare` blocks are to be left for others."""

    def __init__(self, store: BlockStore, tables: BlockTables) -> None:
        self._store = store
        self._windows = store.windows
        self._tables = tables

    def fits(self, hit: CacheHit, num_tokens: int, window_tokens: int, spare: int) -> bool:
        """A table of `num_tokens` that begins with `hit`, with the window parts of the first `window_tokens`."""
        if self._tables.num_blocks(num_tokens) - len(hit.blocks) + spare > self._store.room(hit.blocks):
            return False
        if not self._windows.window:
            return True
        new = self._windows.end(window_tokens) - len(hit.blocks)
        return new + spare <= self._windows.room(hit.blocks[self._windows.first(hit.num_tokens) :])

    def can_grow(self, allocation: Allocation, num_tokens: int, spare: int) -> bool:
        """To hold `num_tokens` in all. What takes nothing fits, whatever is to be left."""
        needed = self._tables.num_blocks(num_tokens) - len(allocation.blocks)
        if needed > 0 and needed + spare > self._store.room():
            return False
        if not self._windows.window:
            return True
        parts = self._tables.num_missing_parts(allocation, num_tokens)
        return not parts or parts + spare <= self._windows.room()

    def can_jump(self, allocation: Allocation, num_tokens: int) -> bool:
        """To go on behind `num_tokens`, which takes the window parts that are seen from there."""
        return self._tables.num_parts_to_jump(allocation, num_tokens) <= self._windows.room()
