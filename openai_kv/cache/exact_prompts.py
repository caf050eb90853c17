"""ExactPrompts: whole prompts whose last hidden state is kept, so that no layer runs when they come again."""

from openai_kv.cache.allocation import Allocation
from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.store import BlockStore
from openai_kv.request import RequestInfo


class ExactPrompts:
    """A slot is reserved before the step that computes the state; then it is stored or released."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._size = store.tree.block_size

    def reserve(self, info: RequestInfo, prompt: TokenIds) -> int | None:
        if info.retention.num_stored(len(prompt)) < len(prompt):
            return None
        return self._store.exact.reserve(info.namespace, prompt)

    def store(self, allocation: Allocation, prompt: TokenIds, slot: int) -> None:
        tail = self._last_block(allocation, prompt)
        if tail is None:
            self.release(slot)
        else:
            self._store.exact.store(allocation.info.namespace, prompt, tail, slot)

    def release(self, slot: int) -> None:
        self._store.exact.release(slot)

    def _last_block(self, allocation: Allocation, prompt: TokenIds) -> Block | None:
        """The cached block that holds the last token of `prompt`: the request's own, or one that starts like it."""
        full, rest = divmod(len(prompt), self._size)
        if allocation.detached or allocation.num_cached < full:
            return None
        after = allocation.blocks[full - 1] if full else None
        return self._store.tree.holder(allocation.info.namespace, after, prompt[-rest:]) if rest else after
