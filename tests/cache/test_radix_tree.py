from collections.abc import Sequence

import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.node import common_length
from openai_kv.cache.radix_tree import RadixTree

SIZE = 4


class Tree(RadixTree):
    """Makes blocks as it goes: `put` stores a whole text and returns the blocks that hold it."""

    def __init__(self, block_size: int = SIZE) -> None:
        super().__init__(block_size)
        self.made = 0

    def put(self, text: Sequence[int], namespace: str = "") -> list[Block]:
        chain: list[Block] = []
        for start in range(0, len(text), self.block_size):
            self.made += 1
            after = chain[-1] if chain else None
            tokens = tuple(text[start : start + self.block_size])
            chain.append(self.insert(namespace, after, Block(self.made), tokens))
        return chain

    def hit(self, text: Sequence[int], namespace: str = "") -> int:
        match = self.find_prefix(namespace, tuple(text))
        return len(match.blocks) * self.block_size + match.tail_tokens


def test_finds_whole_blocks_and_the_tail_to_the_token() -> None:
    tree = Tree()
    chain = tree.put(range(10))
    for length in range(11):
        assert tree.hit(range(length)) == length
    match = tree.find_prefix("", (0, 1, 2, 3, 4, 5, 99))
    assert (match.blocks, match.tail, match.tail_tokens) == (chain[:1], chain[1], 2)
    assert tree.hit([9, 9]) == 0
    assert tree.find_prefix("", (9, 9)).tail is None


def test_47_of_64_tokens_are_found() -> None:
    tree = Tree(64)
    tree.put(range(100))
    assert tree.hit([*range(47), *range(500, 600)]) == 47


def test_a_tail_is_found_inside_an_edge_and_among_partial_children() -> None:
    tree = Tree()
    tree.put([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])
    assert tree.hit([0, 1, 2, 3, 4, 5, 6, 99]) == 7
    tree.put([0, 1, 2, 3, 4, 5, 50])
    assert tree.hit([0, 1, 2, 3, 4, 5, 50, 51]) == 7
    assert tree.hit([0, 1, 2, 3, 4, 5, 6, 51]) == 7
    assert tree.hit([0, 1, 2, 3, 4, 5, 51]) == 6


def test_edges_split_at_block_boundaries_and_join_again() -> None:
    tree = Tree()
    long = tree.put(range(16))
    assert tree.num_nodes == 1
    branch = tree.put([*range(8), 70, 71, 72, 73])
    assert branch[:2] == long[:2]
    assert tree.num_nodes == 3
    assert tree.chain(long[3]) == long
    assert tree.chain(branch[2]) == branch
    assert [tree.parent(block) for block in long] == [None, *long[:3]]
    tree.remove(branch[2])
    assert tree.num_nodes == 1
    assert tree.chain(long[3]) == long
    assert tree.hit(range(16)) == 16


def test_only_the_last_block_of_a_leaf_can_be_removed() -> None:
    tree = Tree()
    first, second = tree.put(range(8))
    assert (tree.is_leaf(first), tree.is_leaf(second)) == (False, True)
    with pytest.raises(AssertionError):
        tree.remove(first)
    tree.remove(second)
    tree.remove(first)
    assert (tree.roots, tree.num_nodes) == ({}, 0)


def test_namespaces_share_nothing() -> None:
    tree = Tree()
    ours = tree.put(range(8), "a")
    theirs = tree.put(range(8), "b")
    assert not set(ours) & set(theirs)
    assert tree.hit(range(8)) == 0
    assert tree.hit(range(8), "b") == 8
    tree.remove(theirs[1])
    tree.remove(theirs[0])
    assert list(tree.roots) == ["a"]


def test_equal_content_is_held_once() -> None:
    tree = Tree()
    chain = tree.put(range(8))
    assert tree.put(range(8)) == chain
    assert tree.put(range(6)) == chain
    other = tree.put([*range(4), 60, 61])
    assert other[1] is not chain[1]
    assert tree.put([*range(4), 60]) == other


def test_a_partial_block_grows_where_it_is() -> None:
    tree = Tree()
    tree.put([0, 1, 2, 3, 9, 9, 9, 9])
    first, own = tree.put([0, 1, 2, 3, 4])
    assert tree.insert("", first, own, (4, 5)) is own
    assert tree.insert("", first, own, (4, 5, 6, 7)) is own
    assert tree.hit(range(8)) == 8
    (alone,) = tree.put([7])
    assert tree.insert("", None, alone, (7, 8, 9, 10)) is alone
    assert tree.hit([7, 8, 9, 10]) == 4


def test_a_partial_block_can_grow_into_what_is_there() -> None:
    tree = Tree()
    first, own = tree.put([0, 1, 2, 3, 4])
    _, longer = tree.put([0, 1, 2, 3, 4, 5, 6])
    assert tree.superseded(longer) == [own]
    assert tree.insert("", first, own, (4, 5)) is longer
    assert own.token_ids == (4,)
    tree.remove(own)
    assert tree.superseded(longer) == []


def test_siblings_may_share_part_of_their_first_block() -> None:
    tree = Tree()
    texts = [(1, 1, 1, last) for last in range(6)] + [(1, 1, 7, 7), (1, 2, 2, 2)]
    for text in texts:
        tree.put(text)
    assert tree.num_nodes == len(texts)
    assert tree.hit((1, 1, 1, 99)) == 3
    assert tree.hit((1, 1, 99, 99)) == 2
    assert tree.hit((1, 1, 7, 0)) == 3
    assert tree.hit((1, 99)) == 1


class CountedToken(int):
    """A token that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        CountedToken.compared += 1
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        CountedToken.compared += 1
        return int(self) < int(other)

    __hash__ = int.__hash__


def test_ten_to_the_five_siblings_cost_a_few_comparisons() -> None:
    tree = Tree(2)
    root_children = 100_000
    for first in range(root_children):
        tree.insert("", None, Block(first), (first // 300, first % 300))
    assert tree.num_nodes == root_children
    CountedToken.compared = 0
    assert tree.hit([CountedToken(123), CountedToken(1_000_000)]) == 1
    assert 0 < CountedToken.compared < 4 * root_children.bit_length()
    CountedToken.compared = 0
    tree.insert("", None, Block(root_children), (CountedToken(123), CountedToken(400)))
    assert 0 < CountedToken.compared < 8 * root_children.bit_length()


def test_common_length() -> None:
    assert common_length((1, 2, 3), (1, 2, 4)) == 2
    assert common_length((1, 2), (1, 2, 4)) == 2
    assert common_length((), (1,)) == 0
