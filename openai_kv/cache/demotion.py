"""Demotion: which full blocks are to be stored in which tier, and when."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.content_key import content_key, root_content_key, window_key
from openai_kv.outputs import BlockSave


@dataclass(frozen=True, slots=True)
class DemotionRule:
    """When blocks go to one tier: write-through (as soon as they are full), write-back (evicted) or after-hits."""

    policy: str
    hits: int = 2


class Demotion:
    """Hears of the blocks of a store and gathers what the next step has to read out of the pools.

    What is evicted keeps its content until that step begins. `Block.tiers` has a bit for each tier, by its place among
    `rules`, that was given the block or that it came from, `Block.window_tiers` for its part in the window group.
    Blocks that are to stay `in_memory` do. `has_full` False: every layer has a window, all there is are such parts.
    """

    def __init__(self, identity: str, rules: Sequence[DemotionRule], *, has_full: bool = True) -> None:
        self.pending: list[BlockSave] = []
        self._identity = identity
        self._rules = rules
        self._has_full = has_full
        self._through = self._numbers("write-through")
        self._back = self._numbers("write-back")

    def _numbers(self, policy: str) -> tuple[int, ...]:
        return tuple(index for index, rule in enumerate(self._rules) if rule.policy == policy)

    def root(self, namespace: str) -> bytes:
        return root_content_key(self._identity, namespace)

    def on_full(self, block: Block, after: Block | None, namespace: str, tokens: TokenIds) -> None:
        """`block`, full with `tokens`, is cached below `after` (None: it is the first)."""
        block.content_key = content_key(self.root(namespace) if after is None else after.content_key, tokens)
        self._offer(block, self._through)

    def on_part(self, block: Block) -> None:
        """Cached `block` has got a part in the window group that it lacked."""
        self._offer(block, self._through)

    def on_hit(self, block: Block) -> None:
        """What writes through gets it now if a failed step, or a reset, lost it."""
        due = [rule.policy == "after-hits" and block.hit_count >= rule.hits for rule in self._rules]
        self._offer(block, (*self._through, *(index for index, is_due in enumerate(due) if is_due)))

    def on_evict(self, block: Block) -> None:
        """A bounded tier may have dropped it since it was there, so it is offered again."""
        block.tiers &= ~_mask(self._back)
        self.on_part_evict(block)

    def on_part_evict(self, block: Block) -> None:
        """Only the part in the window group goes. What is left is of little use without it, so all is stored."""
        block.window_tiers &= ~_mask(self._back)
        self._offer(block, self._back)

    def take(self) -> tuple[BlockSave, ...]:
        """What is pending, for the step that is being decided."""
        saves, self.pending = tuple(self.pending), []
        return saves

    def forget(self, blocks: Collection[Block], tiers: Collection[int]) -> None:
        """These tiers are empty now."""
        left = [
            replace(save, tiers=tuple(index for index in save.tiers if index not in tiers)) for save in self.pending
        ]
        self.pending = [save for save in left if save.tiers]
        for block in blocks:
            block.tiers &= ~_mask(tiers)
            block.window_tiers &= ~_mask(tiers)

    def lose(self, blocks: Sequence[Block], saves: Collection[BlockSave]) -> None:
        """The step that was to read these out of the pools failed: no tier has them, as far as `blocks` say so."""
        lost = {save.key: _mask(save.tiers) for save in saves}
        for block in blocks if lost else ():
            if block.content_key:
                block.tiers &= ~lost.get(block.content_key, 0)
                block.window_tiers &= ~lost.get(window_key(block.content_key), 0)

    def _offer(self, block: Block, tiers: Sequence[int]) -> None:
        if not tiers or block.in_memory or not block.content_key:
            return
        new = _without(tiers, block.tiers) if self._has_full else ()
        if new:
            block.tiers |= _mask(new)
            self.pending.append(BlockSave(block.block_id, block.content_key, block.token_ids, new))
        new = _without(tiers, block.window_tiers) if block.window_id else ()
        if new:
            block.window_tiers |= _mask(new)
            key = window_key(block.content_key)
            self.pending.append(BlockSave(block.window_id, key, block.token_ids, new, windowed=True))


def _mask(tiers: Collection[int]) -> int:
    return sum(1 << index for index in tiers)


def _without(tiers: Sequence[int], known: int) -> tuple[int, ...]:
    return tuple(index for index in tiers if not known >> index & 1)
