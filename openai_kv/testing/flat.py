"""A cache of one-block chains: every unreferenced block is a candidate, the worst case for the time of a decision."""

import gc
from dataclasses import dataclass
from itertools import count
from random import Random
from types import BuiltinFunctionType, FunctionType, ModuleType

from openai_kv.cache.block import Block, BlockView
from openai_kv.cache.eviction import NullObserver
from openai_kv.cache.store import BlockStore
from openai_kv.request import RequestInfo
from openai_kv.testing.watch import WatchedPolicy

OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, Block, BlockView)


@dataclass(frozen=True, slots=True)
class DecisionCost:
    """Of one decision in a pool of `num_blocks` candidates: all of the policy's hooks, and candidates looked at."""

    num_blocks: int
    seconds: float
    examined: float


class FlatCache:
    """Blocks of one token each. `insert` is a request that misses, `touch` one that hits."""

    def __init__(self, policy: WatchedPolicy, num_blocks: int) -> None:
        self.policy = policy
        self.now = 0.0
        self.store = BlockStore(
            num_blocks=num_blocks,
            block_size=1,
            policy=policy,
            num_hidden_slots=0,
            clock=lambda: self.now,
            observer=NullObserver(),
        )
        self._numbers = count()

    def insert(self) -> Block:
        """Content never seen before."""
        self.now += 1
        number = next(self._numbers)
        info = RequestInfo(f"r{number}", 1)
        (block,) = self.store.take(1)
        self.store.insert(info, None, block, (number,))
        self._leave(info, block)
        return block

    def touch(self, block: Block) -> None:
        self.now += 1
        info = RequestInfo(f"r{next(self._numbers)}", 1)
        self.store.share([block])
        self.store.access(info, [block])
        self._leave(info, block)

    def _leave(self, info: RequestInfo, block: Block) -> None:
        self.store.release([block])
        self.store.evictor.on_request_finished(info)

    def churn(self, count: int) -> None:
        for _ in range(count):
            self.insert()
        self.policy.check()


def measure(policy: WatchedPolicy, num_blocks: int, decisions: int, seed: int) -> DecisionCost:
    """Fill a pool, hit a third of it at random, and replace `decisions` blocks."""
    cache, random = FlatCache(policy, num_blocks), Random(seed)
    cache.churn(num_blocks)
    cached = [block for block in cache.store.pool.blocks if block.node is not None]
    for block in random.choices(cached, k=num_blocks // 3 if cached else 0):
        if block.node is not None:
            cache.touch(block)
    policy.decisions, policy.examined, policy.seconds = 0, 0, 0.0
    cache.churn(decisions)
    made = max(1, policy.decisions)
    return DecisionCost(num_blocks, policy.seconds / made, policy.examined / made)


def footprint(root: object) -> int:
    """How many objects `root` keeps alive, not looking into blocks, functions, classes and modules."""
    seen: dict[int, object] = {}
    pending = [root]
    while pending:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if not isinstance(thing, OPAQUE):
            pending.extend(gc.get_referents(thing))
    return len(seen)
