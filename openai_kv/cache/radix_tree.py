"""RadixTree: every cached prefix once, as a compressed trie whose edges are runs of blocks.

After SGLang's RadixAttention (Zheng et al. 2024, arXiv:2312.07104), with edges split at block boundaries and matches
that end inside a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.node import Node, common_length


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Whole blocks that match, and the block whose first `tail_tokens` tokens match after them."""

    blocks: list[Block]
    tail: Block | None
    tail_tokens: int


class RadixTree:
    """One root per namespace, there as long as it has children. All blocks but the last of a leaf are full."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.roots: dict[str, Node] = {}
        self.num_nodes = 0  # roots are not counted

    def find_prefix(self, namespace: str, tokens: TokenIds) -> PrefixMatch:
        """The longest cached prefix of `tokens`, to the token; O(blocks matched * log(siblings))."""
        blocks: list[Block] = []
        node = self.roots.get(namespace)
        tail: Block | None = None
        while node is not None and tail is None:
            wanted = self._slice(tokens, len(blocks))
            child = node.children.get(wanted) if len(wanted) == self.block_size else None
            tail = node.closest(wanted) if child is None else self._walk(child, tokens, blocks)
            node = child
        shared = common_length(tail.token_ids, self._slice(tokens, len(blocks))) if tail is not None else 0
        return PrefixMatch(blocks, tail if shared else None, shared)

    def _walk(self, node: Node, tokens: TokenIds, blocks: list[Block]) -> Block | None:
        """Add the blocks of the edge that match in full; the first that does not, None if all do."""
        size, start = self.block_size, len(blocks) * self.block_size
        for block in node.blocks:
            if block.token_ids != tokens[start : start + size] or len(block.token_ids) < size:
                return block
            blocks.append(block)
            start += size
        return None

    def _slice(self, tokens: TokenIds, index: int) -> TokenIds:
        return tokens[index * self.block_size : (index + 1) * self.block_size]

    def holder(self, namespace: str, after: Block | None, tokens: TokenIds) -> Block | None:
        """The block below `after` (None: the root) that starts with all of `tokens`, at most one block of them."""
        following = self._following(after)
        if following is not None:
            return following if following.token_ids[: len(tokens)] == tokens else None
        node = self.roots.get(namespace) if after is None else after.node
        return node.holder(tokens) if node is not None else None

    def successors(self, namespace: str, after: Block | None, tokens: TokenIds, limit: int) -> list[Block]:
        """Blocks below `after` (None: the root) that start with all of `tokens`, at most one block of them."""
        following = self._following(after)
        if following is not None:
            return [following] if following.token_ids[: len(tokens)] == tokens else []
        node = self.roots.get(namespace) if after is None else after.node
        return node.starting(tokens, limit) if node is not None else []

    def insert(self, namespace: str, after: Block | None, block: Block, tokens: TokenIds) -> Block:
        """Store `block` with `tokens` below `after` (None: the root); O(log(siblings)), or the edge if it splits.

        Returns the block that holds `tokens` in the tree now. That is another one, and nothing has changed, if it was
        there already: equal, or longer where `block` is partial. A partial block that is in the tree grows.
        """
        held = self.holder(namespace, after, tokens)
        if held is not None:
            return held
        if block.node is not None:
            self._grow(block.node, block, tokens)
            return block
        block.token_ids = tokens
        block.depth = 0 if after is None else after.depth + 1
        block.parent = None if after is None else after.info
        self._attach(namespace, after, block)
        return block

    def _grow(self, node: Node, block: Block, tokens: TokenIds) -> None:
        if node.blocks[0] is not block:
            block.token_ids = tokens
            return
        parent = node.parent
        assert parent is not None
        parent.discard(node)
        block.token_ids = tokens
        parent.add(node)

    def _attach(self, namespace: str, after: Block | None, block: Block) -> None:
        node = self._open(namespace, after)
        if node.blocks and not node.children:
            node.blocks.append(block)
            block.node = node
            return
        node.add(Node(namespace, node, [block]))
        self.num_nodes += 1

    def _open(self, namespace: str, after: Block | None) -> Node:
        """The node that ends with `after`."""
        if after is None:
            return self.roots.setdefault(namespace, Node(namespace, None, []))
        assert after.node is not None and len(after.token_ids) == self.block_size, f"{after} can't have children"
        return after.node if self._following(after) is None else self._split(after.node, after)

    def _split(self, node: Node, last: Block) -> Node:
        """Cut the edge behind `last`. The lower part stays the same node, so that no child changes its parent."""
        parent, at = node.parent, node.index(last) + 1
        assert parent is not None
        parent.discard(node)
        upper = Node(node.namespace, parent, node.blocks[:at])
        del node.blocks[:at]
        node.parent = upper
        parent.add(upper)
        upper.add(node)
        self.num_nodes += 1
        return upper

    def remove(self, block: Block) -> None:
        """Take the last block of a leaf out of the tree; empty nodes and roots go, a lone child joins its parent."""
        node = block.node
        assert node is not None and self.is_leaf(block), f"{block} has cached children"
        if len(node.blocks) > 1:
            node.blocks.pop()
        else:
            self._remove_node(node)
        block.node = None

    def _remove_node(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        parent.discard(node)
        self.num_nodes -= 1
        if parent.parent is None and not parent.children:
            del self.roots[parent.namespace]
        elif parent.parent is not None and len(parent.children) == 1:
            self._join(parent, parent.parent)

    def _join(self, node: Node, parent: Node) -> None:
        """Undo a split: the only child takes over the edge of `node`."""
        (child,) = node.children.values()
        parent.discard(node)
        child.blocks[:0] = node.blocks
        for block in node.blocks:
            block.node = child
        child.parent = parent
        parent.add(child)
        self.num_nodes -= 1

    def superseded(self, block: Block) -> list[Block]:
        """Siblings of `block` that hold nothing but the beginning of its tokens."""
        node = block.node
        if node is None or node.parent is None or node.blocks[0] is not block:
            return []
        siblings = node.parent.children
        shorter = (block.token_ids[:length] for length in range(1, len(block.token_ids)))
        return [siblings[key].blocks[0] for key in shorter if key in siblings]

    def is_leaf(self, block: Block) -> bool:
        node = block.node
        return node is not None and node.blocks[-1] is block and not node.children

    def parent(self, block: Block) -> Block | None:
        """The block before `block` in its chain."""
        node = block.node
        assert node is not None
        at = node.index(block)
        if at:
            return node.blocks[at - 1]
        return node.parent.blocks[-1] if node.parent is not None and node.parent.blocks else None

    def chain(self, block: Block) -> list[Block]:
        """From the first block of the prefix to `block`."""
        node = block.node
        assert node is not None
        edges = [node.blocks[: node.index(block) + 1]]
        while node.parent is not None:
            node = node.parent
            edges.append(node.blocks)
        return [each for edge in reversed(edges) for each in edge]

    def nodes(self) -> Iterator[Node]:
        """Every node but the roots, parents first."""
        pending = [child for root in self.roots.values() for child in root.children.values()]
        while pending:
            node = pending.pop()
            yield node
            pending.extend(node.children.values())

    def _following(self, block: Block | None) -> Block | None:
        """The block behind `block` within the same edge."""
        if block is None or block.node is None or block.node.blocks[-1] is block:
            return None
        return block.node.blocks[block.node.index(block) + 1]
