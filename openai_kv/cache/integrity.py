"""check_integrity: are the books of the cache right? Everything is counted anew, nothing is taken from a counter."""

from collections import Counter
from collections.abc import Collection

from openai_kv.cache.allocation import Allocation
from openai_kv.cache.block import Block
from openai_kv.cache.eviction import Evictor
from openai_kv.cache.exact_index import ExactIndex
from openai_kv.cache.node import Node
from openai_kv.cache.pin import Pin
from openai_kv.cache.pins import Pins
from openai_kv.cache.pool import BlockPool
from openai_kv.cache.radix_tree import RadixTree
from openai_kv.cache.store import BlockStore
from openai_kv.cache.window_integrity import check_windows
from openai_kv.errors import IntegrityError


def check_integrity(store: BlockStore, allocations: Collection[Allocation]) -> None:
    """Raises IntegrityError naming the first thing that is wrong."""
    indexed = _check_tree(store.tree)
    _check_blocks(store.pool, indexed)
    _check_references(store.pool, store.tree, allocations)
    _check_candidates(store.tree, store.evictor, store.pins, indexed)
    _check_exact(store.tree, store.exact)
    _check_pins(store.pool, store.tree, store.pins)
    check_windows(store, allocations)


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise IntegrityError(problem)


def _check_tree(tree: RadixTree) -> set[Block]:
    """Every indexed block, each reached from its root exactly once."""
    nodes = list(tree.nodes())
    blocks = [block for node in nodes for block in node.blocks]
    for node in (*tree.roots.values(), *nodes):
        _check_node(tree, node)
    for namespace, root in tree.roots.items():
        _require(not root.blocks and root.namespace == namespace and bool(root.children), f"bad root {namespace!r}")
    _require(len(nodes) == tree.num_nodes, f"{len(nodes)} nodes, {tree.num_nodes} counted")
    _require(len(blocks) == len(set(blocks)), "a block is in two places of the tree")
    return set(blocks)


def _check_node(tree: RadixTree, node: Node) -> None:
    where = f"node {node.blocks[:1]}"
    depth = 0
    if node.parent is not None:
        parent = node.parent
        depth = parent.blocks[-1].depth + 1 if parent.blocks else 0
        _require(bool(node.blocks) and len(node.children) != 1, f"{where} is not compressed")
        _require(parent.children.get(node.key) is node, f"{where} is not where its parent looks for it")
        _require(parent.namespace == node.namespace, f"{where} is in a foreign namespace")
    for index, block in enumerate(node.blocks):
        size = len(block.token_ids)
        full = size == tree.block_size
        last_of_leaf = not node.children and index == len(node.blocks) - 1
        _require(full or (last_of_leaf and 0 < size < tree.block_size), f"{block} has children and is not full")
        _require(block.node is node and block.depth == depth + index, f"{block} does not know its place")
        _require((block.parent is None) == (block.depth == 0), f"{block} does not know its parent")
    _require(sorted(node.children) == node.sorted_keys, f"the children of {where} are out of order")
    _require(all(key == child.key for key, child in node.children.items()), f"a child of {where} has a wrong key")


def _check_blocks(pool: BlockPool, indexed: set[Block]) -> None:
    free, referenced = set(pool.free_blocks), {block for block in pool.blocks if block.ref_count}
    cached = indexed - referenced
    _require(len(free) == pool.num_free, "a block is on the free list twice")
    _require(len(free) + len(cached) + len(referenced) == pool.num_blocks, "free + cached + referenced != total")
    _require(free | cached | referenced == set(pool.blocks), "a block is lost")
    counted = (pool.num_free, pool.num_cached, pool.num_referenced)
    _require(counted == (len(free), len(cached), len(referenced)), f"free, cached, referenced counted as {counted}")
    _require(all(block.node is None or block in indexed for block in pool.blocks), "a block thinks it is cached")
    _require(all(not block.pin_count or block in indexed for block in pool.blocks), "a pinned block is not cached")
    pinned_idle = sum(block.pin_count > 0 for block in cached)
    _require(pinned_idle == pool.num_pinned_idle, f"{pinned_idle} idle pinned blocks, {pool.num_pinned_idle} counted")


def _check_references(pool: BlockPool, tree: RadixTree, allocations: Collection[Allocation]) -> None:
    holders = Counter(block for allocation in allocations for block in allocation.blocks)
    for block in pool.blocks:
        _require(block.ref_count == holders[block], f"{block} has {holders[block]} holders")
        if block.node is not None and (block.ref_count or block.pin_count):
            parent = tree.parent(block)
            kept = parent is None or parent.ref_count > 0 or parent.pin_count > 0
            _require(kept, f"{block} is in use and {parent} before it is not")
    for allocation in allocations:
        _check_allocation(tree, allocation)


def _check_allocation(tree: RadixTree, allocation: Allocation) -> None:
    who, blocks = allocation.info.request_id, allocation.blocks
    _require([*allocation.block_ids] == [block.block_id for block in blocks], f"{who} has a wrong block table")
    _require(len(blocks) == -(-allocation.num_tokens // tree.block_size), f"{who} has too many blocks or too few")
    if allocation.num_cached and not allocation.detached:
        cached = blocks[: allocation.num_cached]
        _require(all(block.node is not None for block in cached), f"{who} holds a block that left the tree")
        _require(cached == tree.chain(cached[-1]), f"the blocks of {who} are not the tree's")


def _check_candidates(tree: RadixTree, evictor: Evictor, pins: Pins, indexed: set[Block]) -> None:
    evictable = {block for block in indexed if block.ref_count == block.pin_count == 0 and tree.is_leaf(block)}
    protected = {block for block in evictable if block.soft_count}
    _require(set(evictor.candidates.values()) == evictable - protected, "the candidates are not the evictable leaves")
    _require(set(pins.held_back.values()) == protected, "those held back are not the soft-pinned candidates")
    known = (*evictor.candidates.items(), *pins.held_back.items())
    _require(all(info is block.info for info, block in known), "a candidate has a stale view")


def _check_exact(tree: RadixTree, exact: ExactIndex) -> None:
    for key, entry in exact.entries.items():
        node = entry.tail.node
        if node is None:
            raise IntegrityError(f"an exact entry hangs on {entry.tail}, which is not cached")
        chain = tree.chain(entry.tail)
        tokens = tuple(token for block in chain for token in block.token_ids)
        _require(tokens[: len(key.prompt)] == key.prompt, "an exact entry's blocks hold other tokens")
        _require(len(chain) == -(-len(key.prompt) // tree.block_size), "an exact entry hangs on the wrong block")
        _require(node.namespace == key.namespace, "an exact entry is in a foreign namespace")
    exact.check_slots()


def _check_pins(pool: BlockPool, tree: RadixTree, pins: Pins) -> None:
    """What the pins keep is what the blocks and the pool have counted."""
    _require(sorted(map(id, pins.hard)) == sorted(map(id, pins.by_id.values())), "a hard pin is not found by its id")
    for pin in (*pins.hard, *pins.soft):
        _check_pin(tree, pin)
    _require(sum(len(block.pins) for block in pool.blocks) == len(pins.hard) + len(pins.soft), "a pin is lost")
    hard = Counter(block for pin in pins.hard for block in tree.chain(pin.block))
    soft = Counter(block for pin in pins.soft for block in tree.chain(pin.block))
    for block in pool.blocks:
        counted = (block.pin_count, block.soft_count)
        _require(counted == (hard[block], soft[block]), f"{block} has counted {counted} hard and soft pins")
    _require((pool.num_pinned, pool.num_soft_pinned) == (len(hard), len(soft)), "pinned blocks are miscounted")


def _check_pin(tree: RadixTree, pin: Pin) -> None:
    block = pin.block
    _require(pin in block.pins and block.node is not None, f"{block} knows nothing of a pin that ends in it")
    start = block.depth * tree.block_size
    _require(start < pin.num_tokens <= start + len(block.token_ids), f"{block} does not hold the end of a pin")
