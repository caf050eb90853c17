"""Contest: which of several policies would have hit most lately, by a small shadow of the cache for each."""

from collections.abc import Sequence

from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.cache.shadow import Shadow

HASH = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: keys need not be well mixed
WINDOW = 16  # how many times as many look-ups of blocks as the cache has blocks count: older ones fade
VERDICTS = 8  # as many a cacheful
DOUBT = 1.0  # standard deviations; a lead within it is chance


class Contest:
    """Shadows of `policies` with about `sample` blocks each, or all there are, see every look-up that `see` tells of.

    `leader` is an index into `policies`, the first until another has proved better. A look-up of a block counts only if
    some shadows have the block and others don't: the head that all requests share tells nothing.
    """

    def __init__(self, policies: Sequence[EvictionPolicy], cache: CacheInfo, sample: int) -> None:
        rate = min(1.0, sample / cache.num_blocks)
        small = CacheInfo(max(1, round(cache.num_blocks * rate)), cache.block_size, cache.clock)
        self.leader = 0
        self.scores = [0.0] * len(policies)
        self._shadows = [Shadow(policy, small) for policy in policies]
        self._threshold, self._block_size = round(rate * 2**32), cache.block_size
        self._anchors: dict[BlockInfo, int | None] = {}  # the last sampled block of the chain up to and with this one
        self._seen, self._period = 0, max(1, small.num_blocks // VERDICTS)

    def see(self, block: BlockInfo) -> None:
        """A look-up wanted `block`, or a request brought it; blocks of a chain root first. O(1) policy calls."""
        sampled = self._is_sampled(block)
        if not sampled and block in self._anchors:
            return
        before = None if block.parent is None else self._anchors.get(block.parent)
        self._anchors[block] = block.key if sampled else before
        if sampled:
            self._count([shadow.use(block, before) for shadow in self._shadows])

    def forget(self, block: BlockInfo) -> None:
        """The cache dropped `block`; the shadows keep what they have."""
        self._anchors.pop(block, None)

    def _is_sampled(self, block: BlockInfo) -> bool:
        """Whole blocks only: the key of a partial one is yet to change."""
        return (block.key * HASH >> 32) & 0xFFFFFFFF < self._threshold and block.num_tokens == self._block_size

    def _count(self, hits: list[bool]) -> None:
        if any(hits) and not all(hits):
            self.scores = [score + hit for score, hit in zip(self.scores, hits, strict=True)]
        self._seen += 1
        if self._seen % self._period == 0:
            self._judge()

    def _judge(self) -> None:
        """The best takes over if its lead is no chance; counts of hits vary by their square root."""
        best = max(range(len(self.scores)), key=self.scores.__getitem__)
        lead, both = self.scores[best] - self.scores[self.leader], self.scores[best] + self.scores[self.leader]
        if lead > DOUBT * both**0.5:
            self.leader = best
        self.scores = [score * (1 - 1 / (WINDOW * VERDICTS)) for score in self.scores]
