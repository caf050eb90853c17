import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.policy import BlockInfo
from openai_kv.cache.segments import GhostList, SegmentedPolicy


def blocks(count: int) -> list[BlockInfo]:
    return [Block(number).info for number in range(count)]


def test_a_ghost_list_forgets_the_oldest_beyond_its_limit() -> None:
    ghosts = GhostList(2)
    for key in (1, 2, 1, 3):
        ghosts.add(key)
    assert [key in ghosts for key in (1, 2, 3)] == [True, False, True]
    ghosts.remove(1)
    assert len(ghosts) == 1
    GhostList(0).add(1)


def test_a_segment_passes_over_what_is_no_candidate_and_keeps_its_place() -> None:
    policy = SegmentedPolicy()
    segment = policy.new_segment()
    a, b, c = blocks(3)
    for block in (a, b, c):
        policy.place(block, segment)
    assert (segment.first, segment.oldest, len(segment)) == (None, a, 3)
    policy.on_evictable(c)
    policy.on_evictable(b)
    assert segment.first is b
    policy.on_evictable(a)
    assert segment.first is a, "its place is by when it was pushed"
    policy.on_unevictable(a)
    assert segment.first is b


def test_a_block_moves_to_the_recent_end_and_stays_a_candidate() -> None:
    policy = SegmentedPolicy()
    one, other = policy.new_segment(), policy.new_segment()
    a, b = blocks(2)
    for block in (a, b):
        policy.place(block, one)
        policy.on_evictable(block)
    policy.place(a, one)
    assert (one.first, one.oldest) == (b, b)
    policy.place(b, other)
    assert (one.first, other.first, len(one), len(other)) == (a, b, 1, 1)
    assert policy.segment_of(b) is other
    assert policy.oldest_in(other, one) is b


def test_an_evicted_block_is_nowhere() -> None:
    policy = SegmentedPolicy()
    segment = policy.new_segment()
    (a,) = blocks(1)
    policy.place(a, segment)
    policy.on_evictable(a)
    policy.on_evict(a)
    assert (segment.first, len(segment)) == (None, 0)
    with pytest.raises(KeyError):
        policy.segment_of(a)
