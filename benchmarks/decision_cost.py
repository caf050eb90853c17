"""What a decision costs under each policy, by the size of the pool: python benchmarks/decision_cost.py [--json FILE]

Every block is a chain of its own, so that all are candidates: the worst case. Prints CPU microseconds: of a decision
(`select_victim` alone, and the reading of a clock), of a replacement (a decision and all the policy hears as one block
goes and another comes), and of a hit (all it hears as a block is used once more). Blocks are bare: no tree, no guard.
A million blocks take 1 to 2 GB.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from openai_kv.cache.block import Block, chain_key
from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.plugins import load_plugins
from openai_kv.request import RequestInfo

SIZES = (1_000, 10_000, 100_000, 1_000_000)
KINDS = ("chat", "completion", "generate")


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds. Means, as a median would hide what is done once in a while."""

    policy: str
    num_blocks: int
    decision: float
    replacement: float
    hit: float


class Pool:
    """Blocks that come and are hit, each in a tick and a second of its own."""

    def __init__(self, policy: EvictionPolicy, size: int) -> None:
        self.policy, self.size, self.random = policy, size, Random(0)
        self.now = 0
        self.deciding = 0.0
        self.live: dict[BlockInfo, Block] = {}
        policy.start(CacheInfo(size, 1, lambda: float(self.now)))
        self.insert(size)

    def insert(self, count: int) -> None:
        for _ in range(count):
            self._insert(Block(self.now))

    def _insert(self, block: Block) -> None:
        self.now += 1
        block.token_ids, block.key = (1,), chain_key(0, (self.now,))
        block.kind, block.turn = KINDS[self.now % 3], 1 + self.now % 4
        block.created, block.created_time = self.now, float(self.now)
        self._stamp(block)
        self.live[block.info] = block
        self.policy.on_miss(RequestInfo("", 1), 0)
        self.policy.on_insert(block.info)
        self._offer(block)

    def hit(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.now += 1
            self.policy.on_unevictable(block.info)
            block.hit_count, block.gap = block.hit_count + 1, self.now - block.last_accessed_time
            self._stamp(block)
            self.policy.on_access(block.info)
            self._offer(block)

    def _offer(self, block: Block) -> None:
        self.policy.admit(block.info)  # what it would refuse stays: the pool is to be full
        self.policy.on_evictable(block.info)
        self.policy.on_request_finished(RequestInfo("", 1))

    def _stamp(self, block: Block) -> None:
        block.last_accessed, block.last_accessed_time = self.now, float(self.now)

    def replace(self, count: int) -> None:
        for _ in range(count):
            start = time.process_time()
            victim = self.policy.select_victim(self.live.keys())
            self.deciding += time.process_time() - start
            self.policy.on_evict(victim)
            block = self.live.pop(victim)
            block.clear()
            self._insert(block)


def measure(name: str, size: int, count: int) -> Cost:
    """Fill, hit a third (`count` at most), then replace `count` blocks, or half of the pool."""
    pool = Pool(load_plugins().create_policy(name, {}), size)
    blocks = pool.random.choices(list(pool.live.values()), k=min(count, size // 3))
    hits = timed(lambda: pool.hit(blocks))
    replaced = min(count, size // 2)
    replacements = timed(lambda: pool.replace(replaced))
    return Cost(name, size, 1e6 * pool.deciding / replaced, 1e6 * replacements / replaced, 1e6 * hits / len(blocks))


def timed(run: Callable[[], None]) -> float:
    """CPU seconds."""
    start = time.process_time()
    run()
    return time.process_time() - start


def parse() -> argparse.Namespace:
    known = [plugin.name for plugin in load_plugins().plugins if plugin.hook == "register_eviction_policies"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", nargs="+", choices=known, default=known, metavar="NAME")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, metavar="BLOCKS")
    parser.add_argument("--count", type=int, default=20_000, help="hits and replacements to time [20000]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    return parser.parse_args()


def main() -> None:
    args = parse()
    print(f"{'policy':12}{'blocks':>10}{'us: decision':>14}{'replacement':>13}{'hit':>8}")
    costs = []
    gc.disable()  # a collection goes through the whole pool: the interpreter's cost, not the policy's
    for name in args.policies:
        for size in args.sizes:
            gc.collect()
            cost = measure(name, size, args.count)
            costs.append(cost)
            print(f"{name:12}{size:10}{cost.decision:14.2f}{cost.replacement:13.2f}{cost.hit:8.2f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"unit": "us", "costs": [asdict(cost) for cost in costs]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
