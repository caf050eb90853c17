from math import log2
from random import Random

import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.candidate_queue import CandidateQueue
from tests.counted import Comparisons, count_comparisons


def test_the_smallest_key_is_first_and_ties_keep_their_order() -> None:
    queue = CandidateQueue()
    a, b, c = (Block(number).info for number in range(3))
    for block, key in ((a, (2, 0)), (b, (1, 5)), (c, (1, 5))):
        queue.add(block, key)
    order = []
    while queue:
        order.append(queue.first())
        queue.discard(order[-1])
    assert order == [b, c, a]
    assert a not in queue


def test_a_block_moves_when_it_is_added_again() -> None:
    queue = CandidateQueue()
    a, b = Block(0).info, Block(1).info
    queue.add(a, 1)
    queue.add(b, 2)
    queue.add(a, 3)
    assert (queue.first(), len(queue)) == (b, 2)
    queue.add(a, 0)
    assert (queue.first(), len(queue)) == (a, 2)


def test_an_empty_queue_has_no_first() -> None:
    queue = CandidateQueue()
    queue.discard(Block(0).info)
    with pytest.raises(IndexError):
        queue.first()


def test_blocks_that_come_and_go_leave_nothing_behind() -> None:
    queue = CandidateQueue()
    block = Block(0).info
    for _ in range(1000):
        queue.add(block, 0)
        queue.discard(block)
    assert len(queue._heap) < 50


@pytest.mark.parametrize("size", [10**3, 10**4, 10**5])
def test_an_operation_takes_a_logarithm_of_comparisons(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Comparisons = count_comparisons(monkeypatch)
    random, queue = Random(0), CandidateQueue()
    blocks = [Block(number).info for number in range(size)]
    for block in blocks:
        queue.add(block, random.random())
    for block in random.choices(blocks, k=size // 2):
        queue.add(block, random.random())
    for _ in range(size // 4):
        queue.discard(queue.first())
    assert 0 < counted.number < (size + size // 2 + size // 4) * 2 * log2(size)
