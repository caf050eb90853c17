import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.pool import BlockPool


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_referenced


def test_allocates_all_or_nothing() -> None:
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert counts(pool) == (3, 0, 0)
    taken = pool.allocate(3)
    assert taken is not None
    assert sorted(block.block_id for block in taken) == [0, 1, 2]
    assert [block.ref_count for block in taken] == [1, 1, 1]
    assert pool.allocate(1) is None
    assert counts(pool) == (0, 0, 3)
    assert pool.utilization == 1


def test_a_block_is_referenced_until_its_last_reference_goes() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    pool.acquire(block)
    assert not pool.release(block)
    assert counts(pool) == (1, 0, 1)
    assert pool.release(block)
    assert counts(pool) == (1, 1, 0)
    pool.free(block)
    assert counts(pool) == (2, 0, 0)
    with pytest.raises(AssertionError, match="once too often"):
        pool.release(block)


def test_a_block_in_use_is_not_freed() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1) or []
    with pytest.raises(AssertionError, match="in use"):
        pool.free(block)


def test_pins_are_counted_apart_from_references() -> None:
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    pool.pin(block)
    pool.pin(block)
    assert (block.ref_count, block.pin_count, pool.num_pinned_idle) == (1, 2, 0)
    pool.release(block)
    assert (pool.num_cached, pool.num_pinned_idle, pool.num_evictable) == (1, 1, 0)
    pool.acquire(block)
    assert pool.num_pinned_idle == 0
    pool.release(block)
    pool.unpin(block)
    assert pool.num_pinned_idle == 1
    pool.unpin(block)
    assert (pool.num_pinned_idle, pool.num_evictable) == (0, 1)
    with pytest.raises(AssertionError, match="once too often"):
        pool.unpin(block)


def test_the_view_is_read_only_and_new_with_new_content() -> None:
    block = Block(5)
    block.token_ids, block.hit_count = (1, 2, 3), 4
    view = block.info
    assert (view.block_id, view.num_tokens, view.hit_count, view.is_first_block) == (5, 3, 4, True)
    with pytest.raises(AttributeError):
        view.hit_count = 0  # type: ignore[misc]
    block.clear()
    assert block.info != view
    assert len({block.info, view}) == 2
