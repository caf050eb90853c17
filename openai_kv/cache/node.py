"""Node: one edge of the radix tree, and the order of its children."""

from bisect import bisect_left, insort
from itertools import takewhile

from openai_kv.cache.block import Block, TokenIds


class Node:
    """An edge (`blocks`, empty at a root) and what follows it.

    Siblings may share part of their first block, so children are kept by that block's exact tokens, and sorted: the
    longest common prefix is a neighbour of where the wanted tokens would stand.
    """

    __slots__ = ("blocks", "children", "namespace", "parent", "sorted_keys")

    def __init__(self, namespace: str, parent: "Node | None", blocks: list[Block]) -> None:
        self.namespace = namespace
        self.parent = parent
        self.blocks = blocks
        self.children: dict[TokenIds, Node] = {}
        self.sorted_keys: list[TokenIds] = []
        for block in blocks:
            block.node = self

    @property
    def key(self) -> TokenIds:
        return self.blocks[0].token_ids

    def index(self, block: Block) -> int:
        return block.depth - self.blocks[0].depth

    def add(self, child: "Node") -> None:
        self.children[child.key] = child
        insort(self.sorted_keys, child.key)

    def discard(self, child: "Node") -> None:
        del self.children[child.key]
        del self.sorted_keys[bisect_left(self.sorted_keys, child.key)]

    def holder(self, tokens: TokenIds) -> Block | None:
        """The child block that starts with all of `tokens`."""
        if tokens in self.children:
            return self.children[tokens].blocks[0]
        at = bisect_left(self.sorted_keys, tokens)
        found = self.sorted_keys[at][: len(tokens)] == tokens if at < len(self.sorted_keys) else False
        return self.children[self.sorted_keys[at]].blocks[0] if found else None

    def starting(self, tokens: TokenIds, limit: int) -> list[Block]:
        """The first `limit` child blocks that start with all of `tokens`."""
        at = bisect_left(self.sorted_keys, tokens)
        keys = takewhile(lambda key: key[: len(tokens)] == tokens, self.sorted_keys[at : at + limit])
        return [self.children[key].blocks[0] for key in keys]

    def closest(self, tokens: TokenIds) -> Block | None:
        """The child block that shares the most leading tokens with `tokens`; None: there are no children."""
        at = bisect_left(self.sorted_keys, tokens)
        neighbours = self.sorted_keys[max(at - 1, 0) : at + 1]
        best = max(neighbours, key=lambda key: common_length(key, tokens), default=None)
        return None if best is None else self.children[best].blocks[0]


def common_length(left: TokenIds, right: TokenIds) -> int:
    """Number of leading tokens that are equal."""
    length = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        length += 1
    return length
