"""check_windows: are the books of the window parts right? Everything is counted anew."""

from collections import Counter
from collections.abc import Collection

from openai_kv.cache.allocation import Allocation
from openai_kv.cache.block import Block
from openai_kv.cache.pins import Pins
from openai_kv.cache.radix_tree import RadixTree
from openai_kv.cache.store import BlockStore
from openai_kv.cache.window_pool import WindowPool
from openai_kv.errors import IntegrityError


def check_windows(store: BlockStore, allocations: Collection[Allocation]) -> None:
    """Raises IntegrityError naming the first thing that is wrong."""
    blocks = [block for block in store.pool.blocks if block.window_id]
    _check_parts(store.windows, blocks)
    _check_references(store.windows, store.pool.blocks, allocations)
    _check_order(store.windows, blocks)
    _check_pins(store.windows, store.tree, store.pins, store.pool.blocks)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise IntegrityError(problem)


def _check_parts(windows: WindowPool, blocks: list[Block]) -> None:
    used = [block.window_id for block in blocks]
    parts = sorted([*windows.free_ids, *used])
    _require(parts == list(range(1, windows.num_blocks + 1)), "a window part is lost or in two places")
    for block in blocks:
        _require(bool(block.window_refs) or block.node is not None, f"nobody needs the window part of {block}")


def _check_references(windows: WindowPool, blocks: Collection[Block], allocations: Collection[Allocation]) -> None:
    holders = Counter(block for allocation in allocations for block in allocation.window_blocks)
    for block in blocks:
        _require(block.window_refs == holders[block], f"the window part of {block} has {holders[block]} holders")
    _require(len(holders) == windows.num_referenced, f"{windows.num_referenced} referenced parts counted")
    for allocation in allocations:
        _check_table(windows, allocation)


def _check_table(windows: WindowPool, allocation: Allocation) -> None:
    held = [block.window_id for block in allocation.window_blocks]
    expected = [0] * allocation.window_start + held if windows.window else []
    _require([*allocation.window_ids] == expected, f"{allocation.info.request_id} has a wrong window table")
    _require(all(held), f"{allocation.info.request_id} lacks a window part")


def _check_order(windows: WindowPool, blocks: list[Block]) -> None:
    idle = [block for block in blocks if block.window_refs == block.window_pins == 0]
    order = windows.idle_blocks
    _require(len(order) == len(idle) and set(order) == set(idle), "the order has other parts than those that can go")
    soft = [block.window_soft > 0 for block in order]
    _require(soft == sorted(soft), "a part that a soft pin wants goes before one that none wants")


def _check_pins(windows: WindowPool, tree: RadixTree, pins: Pins, blocks: Collection[Block]) -> None:
    hard, soft = Counter[Block](), Counter[Block]()
    for pin in (*pins.hard, *pins.soft):
        chain = tree.chain(pin.block)
        (hard if pin.is_hard else soft).update(chain[index] for index in windows.wanted(pin.num_tokens))
    for block in blocks:
        _require((block.window_pins, block.window_soft) == (hard[block], soft[block]), f"{block} is pinned wrongly")
    idle = sum(block.window_id > 0 and not block.window_refs for block in hard)
    _require((windows.num_pinned, windows.num_pinned_idle) == (len(hard), idle), "pinned window parts are miscounted")
