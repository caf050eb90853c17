"""Shadow: what a smaller cache would do under some policy with a sample of the blocks; metadata only.

A sample by the hash of the content keeps the reuse pattern, and a cache smaller by the same rate then hits as often
(SHARDS, Waldspurger et al. FAST 2015; miniature simulation, ATC 2017).
"""

from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy


class ShadowBlock:
    """`BlockInfo` of a sampled block; `parent` is the sampled block before it in its chain."""

    __slots__ = (
        "block_id",
        "children",
        "created",
        "created_time",
        "depth",
        "gap",
        "hit_count",
        "key",
        "kind",
        "last_accessed",
        "last_accessed_time",
        "num_tokens",
        "parent",
        "session_id",
        "turn",
    )

    def __init__(self, block: BlockInfo, block_id: int, parent: "ShadowBlock | None") -> None:
        self.block_id, self.parent = block_id, parent
        self.key, self.depth, self.num_tokens = block.key, block.depth, block.num_tokens
        self.created, self.created_time = block.last_accessed, block.last_accessed_time
        self.hit_count = self.children = 0
        self.gap = 0.0
        self.last_accessed_time = 0.0
        self.stamp(block)

    def hit(self, block: BlockInfo) -> None:
        self.hit_count += 1
        self.gap = block.last_accessed_time - self.last_accessed_time
        self.stamp(block)

    def stamp(self, block: BlockInfo) -> None:
        """As the look-up left the block that is really cached."""
        self.last_accessed, self.last_accessed_time = block.last_accessed, block.last_accessed_time
        self.kind, self.turn, self.session_id = block.kind, block.turn, block.session_id

    @property
    def is_first_block(self) -> bool:
        return self.depth == 0

    @property
    def ref_count(self) -> int:
        """Nothing runs in a shadow."""
        return 0


class Shadow:
    """At most `cache.num_blocks` sampled blocks, evicted leaf-first by `policy`."""

    def __init__(self, policy: EvictionPolicy, cache: CacheInfo) -> None:
        self.policy = policy
        self.blocks: dict[int, ShadowBlock] = {}
        self._candidates: dict[BlockInfo, ShadowBlock] = {}
        self._free = list(range(cache.num_blocks))
        self._tip: ShadowBlock | None = None
        policy.start(cache)

    def use(self, block: BlockInfo, parent: int | None) -> bool:
        """A look-up wanted `block`, behind the sampled block with key `parent`; was it here?

        Blocks of a chain come one after the other, root first. What can't be reached is neither hit nor stored.
        """
        above = None if parent is None else self.blocks.get(parent)
        if above is None and parent is not None:
            return False
        self._hold(above)
        found = self.blocks.get(block.key)
        if found is not None:
            self._hit(found, block)
        else:
            self._insert(block, above)
        return found is not None

    def _hit(self, found: ShadowBlock, block: BlockInfo) -> None:
        self._hold(found)
        found.hit(block)
        self.policy.on_access(found)

    def _insert(self, block: BlockInfo, above: ShadowBlock | None) -> None:
        if not self._free:
            if not self._candidates:
                return
            victim = self.policy.select_victim(self._candidates.keys())
            self._settle(self._drop(self._candidates[victim]))
        new = self.blocks[block.key] = ShadowBlock(block, self._free.pop(), above)
        if above is not None:
            above.children += 1
        self.policy.on_insert(new)
        self._hold(new)

    def _hold(self, block: ShadowBlock | None) -> None:
        """The chain in hand goes to `block`, which is no candidate until the chain leaves it."""
        before, self._tip = self._tip, block
        if block is before:
            return
        if block is not None and block in self._candidates:
            del self._candidates[block]
            self.policy.on_unevictable(block)
        self._settle(before)

    def _settle(self, block: ShadowBlock | None) -> None:
        """A leaf that is not in hand is a candidate; what the policy does not admit goes instead."""
        while block is not None and not block.children and block is not self._tip:
            if self.policy.admit(block):
                self._candidates[block] = block
                self.policy.on_evictable(block)
                return
            block = self._drop(block)

    def _drop(self, block: ShadowBlock) -> ShadowBlock | None:
        self._candidates.pop(block, None)
        self.policy.on_evict(block)
        del self.blocks[block.key]
        self._free.append(block.block_id)
        if block.parent is not None:
            block.parent.children -= 1
        return block.parent
