"""Demotion: which full blocks are to be stored in which tier, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.content_key import content_key, root_content_key
from openai_kv.outputs import BlockSave


@dataclass(frozen=True, slots=True)
class DemotionRule:
    """When blocks go to one tier: write-through (as soon as they are full), write-back (evicted) or after-hits."""

    policy: str
    hits: int = 2


class Demotion:
    """Hears of the blocks of a store and gathers what the next step has to read out of the pool.

    A block that is evicted keeps its content until that step begins. `Block.tiers` has a bit for each tier, by its
    place among `rules`, that was given the block or that it came from. Blocks that are to stay `in_memory` do.
    """

    def __init__(self, identity: str, rules: Sequence[DemotionRule]) -> None:
        self.pending: list[BlockSave] = []
        self._identity = identity
        self._rules = rules

    def root(self, namespace: str) -> bytes:
        return root_content_key(self._identity, namespace)

    def on_full(self, block: Block, after: Block | None, namespace: str, tokens: TokenIds) -> None:
        """`block`, full with `tokens`, is cached below `after` (None: it is the first)."""
        block.content_key = content_key(self.root(namespace) if after is None else after.content_key, tokens)
        self._offer(block, [index for index, rule in enumerate(self._rules) if rule.policy == "write-through"])

    def on_hit(self, block: Block) -> None:
        wanted = [rule.policy == "after-hits" and block.hit_count >= rule.hits for rule in self._rules]
        self._offer(block, [index for index, due in enumerate(wanted) if due])

    def on_evict(self, block: Block) -> None:
        """A bounded tier may have dropped it since it was there, so it is offered again."""
        back = [index for index, rule in enumerate(self._rules) if rule.policy == "write-back"]
        for index in back:
            block.tiers &= ~(1 << index)
        self._offer(block, back)

    def take(self) -> tuple[BlockSave, ...]:
        """What is pending, for the step that is being decided."""
        saves, self.pending = tuple(self.pending), []
        return saves

    def _offer(self, block: Block, tiers: Sequence[int]) -> None:
        new = tuple(index for index in tiers if not block.tiers >> index & 1)
        if not new or block.in_memory or not block.content_key:
            return
        for index in new:
            block.tiers |= 1 << index
        self.pending.append(BlockSave(block.block_id, block.content_key, block.token_ids, new))
