"""LRU, FIFO and OPT over chains of blocks, written from their definitions alone."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Sequence

Chains = Sequence[tuple[int, ...]]


def prefix_hits(chain: Sequence[int], stored: Collection[int]) -> int:
    return next((depth for depth, block in enumerate(chain) if block not in stored), len(chain))


def lru(chains: Chains, capacity: int, *, touch_moves: bool = True) -> int:
    """Touched from the deepest to the root; with `touch_moves` False: FIFO."""
    stored: OrderedDict[int, None] = OrderedDict()
    total = 0
    for chain in chains:
        total += prefix_hits(chain, stored)
        for block in reversed(chain):
            if block in stored:
                if touch_moves:
                    stored.move_to_end(block)
                continue
            if len(stored) == capacity:
                stored.popitem(last=False)
            stored[block] = None
    return total


def opt(chains: Chains, capacity: int) -> int:
    """Belady with bypass: the farthest next use goes, among equals the deepest; insertion stops where it can't pay."""

    uses: dict[int, list[int]] = {}
    for index, chain in enumerate(chains):
        for block in chain:
            uses.setdefault(block, []).append(index)

    def next_use(block: int, after: int) -> float:
        later = uses[block][bisect_right(uses[block], after) :]
        return later[0] if later else float("inf")

    stored: dict[int, tuple[float, int]] = {}
    total = 0
    for index, chain in enumerate(chains):
        total += prefix_hits(chain, stored)
        for depth, block in enumerate(chain):
            use = next_use(block, index)
            if block not in stored:
                if use == float("inf"):
                    break
                if len(stored) == capacity:
                    victim = max(stored, key=lambda other: stored[other], default=None)
                    if victim is None or stored[victim][0] <= use:
                        break
                    del stored[victim]
            stored[block] = (use, depth)
    return total
