"""Snapshot: what the cache holds just now, as the rows that operators are shown."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, TypeVar

from openai_kv.cache.block import Block
from openai_kv.cache.node import Node
from openai_kv.cache.store import BlockStore

T = TypeVar("T")
Row = dict[str, Any]
SHOWN_TOKENS = 64
MAX_SECONDS = 0.008  # of this thread's own time: the next step must not wait longer than 10 ms
STATES: dict[str, Callable[[Block], bool]] = {
    "free": lambda block: block.node is None and not block.ref_count,
    "cached": lambda block: block.node is not None and not block.ref_count,
    "referenced": lambda block: block.ref_count > 0,
    "soft_pinned": lambda block: block.soft_count > 0,
    "pinned": lambda block: block.pin_count > 0,
}


@dataclass(frozen=True, slots=True)
class BlockPage:
    """`following`: the block to go on with; None: there is none left."""

    rows: list[Row]
    following: int | None


class Snapshot:
    """Rows of nodes and of blocks; `epoch` is the Unix time of the clock's zero. Call it between two steps.

    A node is known by the number of its first block plus one, 0 is above all namespaces. These are opaque. There are
    fewer rows than asked for where more would take too long.
    """

    def __init__(self, store: BlockStore, clock: Callable[[], float], epoch: float) -> None:
        self._store = store
        self._clock = clock
        self._epoch = epoch
        self._secret = secrets.token_bytes(16)

    def nodes(self, root: int, depth: int, limit: int, *, with_tokens: bool = False) -> list[Row] | None:
        """Breadth first, node `root` and `depth` levels below it; None: there is no such node."""
        start = self._start(root)
        if start is None:
            return None
        expiry, now = self._expiry(), self._clock()
        nodes = _in_time(islice(_breadth_first(start, depth if root else depth - 1), limit))
        return [self._node_row(node, now, expiry) | (_tokens(node) if with_tokens else {}) for node in nodes]

    def blocks(self, state: str | None, first: int, limit: int) -> BlockPage:
        """By block id, from block `first` on; all, or those in one state."""
        blocks, wanted = self._store.pool.blocks, STATES[state] if state else _any
        now, rows, following = self._clock(), list[Row](), first
        for block in _in_time(map(blocks.__getitem__, range(first, len(blocks)))):
            following = block.block_id + 1
            if wanted(block):
                rows.append(self._block_row(block, now))
            if len(rows) == limit:
                break
        return BlockPage(rows, following if following < len(blocks) else None)

    def _start(self, root: int) -> Iterable[Node] | None:
        """The nodes of the first level."""
        if root == 0:
            return (child for above in self._store.tree.roots.values() for child in above.children.values())
        blocks = self._store.pool.blocks
        node = blocks[root - 1].node if root <= len(blocks) else None
        return [node] if node is not None and node.blocks[0] is blocks[root - 1] else None

    def _expiry(self) -> dict[Node, float]:
        """When the last pin that keeps anything of a node ends; the last comes first, so that few walk to the root."""
        expiry: dict[Node, float] = {}
        for pin in (*reversed(self._store.pins.soft), *reversed(self._store.pins.hard)):
            node = pin.block.node
            while node is not None and expiry.get(node, 0.0) < pin.expires_at:
                expiry[node] = pin.expires_at
                node = node.parent
        return expiry

    def _node_row(self, node: Node, now: float, expiry: dict[Node, float]) -> Row:
        first, size = node.blocks[0], self._store.tree.block_size
        return {
            "id": _node_id(node),
            "parent": _node_id(node.parent),
            "depth_tokens": first.depth * size,
            "tokens": (len(node.blocks) - 1) * size + len(node.blocks[-1].token_ids),
            "blocks": len(node.blocks),
            "children": len(node.children),
            "hits": first.hit_count,
            "references": first.ref_count,
            "age_seconds": now - first.created_time,
            "idle_seconds": now - first.last_accessed_time,
            "tier": "device",
            "pin": _pin_of(first),
            "expires_at": int(self._epoch + expiry[node]) if node in expiry else None,
            "namespace": self._opaque(node.namespace),
        }

    def _block_row(self, block: Block, now: float) -> Row:
        node = block.node
        state = "referenced" if block.ref_count else "free" if node is None else "cached"
        return {
            "block_id": block.block_id,
            "state": state,
            "tokens": len(block.token_ids),
            "ref_count": block.ref_count,
            "hit_count": block.hit_count,
            "is_first_block": node is not None and block.is_first_block,
            "depth_tokens": block.depth * self._store.tree.block_size,
            "age_seconds": None if node is None else now - block.created_time,
            "idle_seconds": None if node is None else now - block.last_accessed_time,
            "pin": _pin_of(block),
            "tier": "device",
            "namespace": None if node is None else self._opaque(node.namespace),
        }

    def _opaque(self, namespace: str) -> str:
        return blake2b(namespace.encode(), digest_size=4, key=self._secret).hexdigest()


def _any(_block: Block) -> bool:
    return True


def _breadth_first(start: Iterable[Node], depth: int) -> Iterator[Node]:
    """Costs what is taken of it, however many siblings there are."""
    pending = deque([(start, 0)])
    while pending:
        siblings, level = pending.popleft()
        if level > depth:
            return
        for node in siblings:
            yield node
            pending.append((node.children.values(), level + 1))


def _in_time(items: Iterable[T]) -> Iterator[T]:
    end = time.thread_time() + MAX_SECONDS
    for item in items:
        yield item
        if time.thread_time() > end:
            return


def _tokens(node: Node) -> Row:
    return {"token_ids": [token for block in node.blocks[:SHOWN_TOKENS] for token in block.token_ids][:SHOWN_TOKENS]}


def _node_id(node: Node | None) -> int:
    return node.blocks[0].block_id + 1 if node is not None and node.blocks else 0


def _pin_of(block: Block) -> str | None:
    return "hard" if block.pin_count else "soft" if block.soft_count else None
