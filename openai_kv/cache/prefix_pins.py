"""PrefixPins: pins by the tokens they keep, as requests and operators name them."""

from collections.abc import Sequence
from contextlib import suppress

from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.pin import Pin
from openai_kv.cache.store import BlockStore
from openai_kv.errors import PinLimitError
from openai_kv.request import PinOrder, RequestInfo


class PrefixPins:
    """Sets and ends the pins of a store; KV that is missing is somebody else's to compute."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def keep(self, info: RequestInfo, prompt: Sequence[int], num_cached_tokens: int = 0) -> None:
        """The whole prompt of this request is cached, as far as it is to be: set the pins that it wants.

        `num_cached_tokens` of it were cached when it came.
        """
        for wanted in info.retention.breakpoints:
            block = self._last_block(info.namespace, tuple(prompt[: wanted.num_tokens]))
            if block is not None:
                self._store.pins.mark(block, wanted.num_tokens, wanted.ttl)
        if info.retention.pin is not None:
            with suppress(PinLimitError):  # whoever ordered it will ask for it, and be told then
                block = self._last_block(info.namespace, tuple(prompt))
                if block is not None:
                    self._set(info.retention.pin, block, len(prompt), num_cached_tokens)

    def pin(self, order: PinOrder, namespace: str, prompt: Sequence[int]) -> Pin | None:
        """The hard pin of this order, set now unless it is; None: not all of `prompt` can be hit.

        Raises PinLimitError, also for a prompt that is still to be computed.
        """
        known = self._store.pins.by_id.get(order.pin_id)
        if known is not None:
            return known
        block = self._last_block(namespace, tuple(prompt))
        if block is not None and self._can_be_hit(block, len(prompt)):
            return self._set(order, block, len(prompt), len(prompt))
        self._store.pins.check_room(*self._num_unpinned(namespace, tuple(prompt)))
        return None

    def _set(self, order: PinOrder, block: Block, num_tokens: int, num_cached_tokens: int) -> Pin:
        pin = self._store.pins.by_id.get(order.pin_id) or self._store.pins.pin(order, block, num_tokens)
        pin.num_cached_tokens = num_cached_tokens
        return pin

    def _can_be_hit(self, block: Block, num_tokens: int) -> bool:
        """At least the whole blocks: the part of the last one may have been lost to a sibling that goes on."""
        reach = self._store.windows.reach(self._store.tree.chain(block), num_tokens)
        return reach >= num_tokens - num_tokens % self._store.tree.block_size

    def unpin(self, pin_id: str) -> bool:
        """End a hard pin; False: there is none of that id, or no more."""
        self._store.expire()
        return self._store.pins.unpin(pin_id)

    def list(self) -> list[Pin]:
        """The hard pins, oldest first."""
        self._store.expire()
        return [*self._store.pins.by_id.values()]

    def _last_block(self, namespace: str, tokens: TokenIds) -> Block | None:
        """The block that holds the last one of `tokens`, if all are cached."""
        match = self._store.tree.find_prefix(namespace, tokens)
        last = match.tail or (match.blocks[-1] if match.blocks else None)
        size = self._store.tree.block_size
        return last if len(match.blocks) * size + match.tail_tokens == len(tokens) else None

    def _num_unpinned(self, namespace: str, tokens: TokenIds) -> tuple[int, int]:
        """How many blocks, and how many window parts, of `tokens`, cached or not, no pin keeps yet."""
        match, size = self._store.tree.find_prefix(namespace, tokens), self._store.tree.block_size
        kept = [*match.blocks]
        if match.tail is not None and match.tail_tokens == len(match.tail.token_ids):
            kept.append(match.tail)  # its pins move to the block that goes on from it
        wanted = self._store.windows.wanted(len(tokens))
        parts = len(wanted) - sum(block.window_pins > 0 for block in kept[wanted.start :])
        return -(-len(tokens) // size) - sum(block.pin_count > 0 for block in kept), parts
