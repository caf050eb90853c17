"""ComputedBlocks: what a request has computed gets into the tree, or makes way for the same content there."""

from collections.abc import Sequence

from openai_kv.cache.allocation import Allocation
from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.block_tables import BlockTables
from openai_kv.cache.store import BlockStore


class ComputedBlocks:
    """Goes on where the request's last cached block ends."""

    def __init__(self, store: BlockStore, tables: BlockTables) -> None:
        self._store = store
        self._tables = tables
        self._size = store.tree.block_size

    def cache(self, allocation: Allocation, token_ids: Sequence[int], *, with_tail: bool) -> None:
        """Of a request that has `token_ids` computed; as KVCacheManager.cache_blocks has it."""
        if allocation.detached:
            return
        size = self._size
        end = allocation.info.retention.num_stored(len(token_ids))
        for index in range(allocation.num_cached, end // size):
            self._cache(allocation, index, tuple(token_ids[index * size : (index + 1) * size]))
            allocation.num_cached += 1
        tail = tuple(token_ids[allocation.num_cached * size : end]) if with_tail else ()
        if tail:
            self._cache(allocation, allocation.num_cached, tail)

    def _cache(self, allocation: Allocation, index: int, tokens: TokenIds) -> None:
        block = allocation.blocks[index]
        if block.node is not None and block.token_ids == tokens:
            return
        after = allocation.blocks[index - 1] if index else None
        held = self._store.insert(allocation.info, after, block, tokens)
        end = index * self._size + len(tokens)
        if held is block:
            allocation.written.store(end, allocation.info.num_prompt_tokens)
            return
        allocation.written.settle(end)
        if len(tokens) == self._size or self._lost(held, tokens):
            self._tables.replace(allocation, index, held)

    def _lost(self, held: Block, tokens: TokenIds) -> bool:
        """Whether `held`, in no other way than ours but without its window part, is nobody's: it may become ours."""
        windows = self._store.windows
        return windows.window > 0 and not held.window_id and not held.ref_count and held.token_ids == tokens
