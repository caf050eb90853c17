"""Contents by number in a cache of one-block chains: what the papers call a cache."""

from collections.abc import Iterable

from openai_kv.cache.block import Block, chain_key
from openai_kv.cache.eviction import NullObserver
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.cache.store import BlockStore
from openai_kv.request import RequestInfo
from openai_kv.testing.watch import WatchedPolicy


class FlatCache:
    """Each request is for one content: a hit, or an insertion after an eviction if the cache is full."""

    def __init__(self, policy: EvictionPolicy, capacity: int) -> None:
        self.policy = WatchedPolicy(policy)
        self.now = 0.0
        self.store = BlockStore(
            num_blocks=capacity,
            block_size=1,
            policy=self.policy,
            num_hidden_slots=0,
            clock=lambda: self.now,
            observer=NullObserver(),
        )
        self._blocks: dict[int, Block] = {}
        self.hits = 0

    def request(self, content: int, **hints: object) -> None:
        self.now += 1
        info = RequestInfo("r", 1, **hints)  # type: ignore[arg-type]
        block = self._blocks.get(content)
        if block is not None and block.token_ids == (content,):
            self.hits += 1
            self.store.share([block])
            self.store.access(info, [block])
        else:
            self.store.access(info, [])  # a tick passes
            (block,) = self.store.take(1)
            self._blocks[content] = block
            self.store.insert(info, None, block, (content,))
        self.store.release([block])
        self.policy.check()

    def run(self, contents: Iterable[int]) -> list[int]:
        """The contents evicted meanwhile, in this order."""
        contents = list(contents)
        names = {chain_key(0, (content,)): content for content in self._blocks.keys() | set(contents)}
        before = len(self.policy.evicted)
        for content in contents:
            self.request(content)
        return [names[key] for key in self.policy.evicted[before:]]
