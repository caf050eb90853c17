"""Two groups of layers in one budget."""

import pytest

from openai_kv.model_runner.layer_groups import LayerGroups
from openai_kv.model_runner.pool_sizes import PoolShares, PoolSizes

GEMMA = PoolShares(16, full_bytes=48 * 1024, window_bytes=240 * 1024, window=512)  # 3 and 15 layers of 1 KiB a token


def test_without_a_window_group_it_is_a_division() -> None:
    assert PoolShares(16, 100).fitting(1099) == PoolSizes(10)
    assert PoolShares(16, 100).fitting(99) == PoolSizes(0)


@pytest.mark.parametrize("budget", [2**24, 2**28, 2**30, 2**34])
def test_a_budget_is_used_up_and_kept(budget: int) -> None:
    sizes = GEMMA.fitting(budget)
    assert GEMMA.nbytes(sizes) <= budget < GEMMA.nbytes(GEMMA.sizes(sizes.num_blocks + 1))


def test_the_window_group_has_its_share() -> None:
    assert GEMMA.sizes(4000) == PoolSizes(4000, 1001)


def test_it_is_never_too_small_for_one_request_beside_the_pins() -> None:
    assert GEMMA.sizes(100) == PoolSizes(100, (512 + 512) // 16 + 1 + 1)
    pinned = PoolShares(16, 1, 1, window=512, max_pinned_fraction=0.25)
    assert pinned.sizes(100).num_window_blocks == -(-65 * 4 // 3) + 1


def test_a_block_has_one_part_so_there_are_no_more_parts_than_blocks() -> None:
    assert GEMMA.sizes(20) == PoolSizes(20, 21)


def test_at_8k_the_memory_is_under_40_percent_of_the_full_layout() -> None:
    assert GEMMA.nbytes(GEMMA.sizes(8192 // 16)) < 0.4 * 512 * 288 * 1024


def test_where_every_layer_has_a_window_the_books_cost_nothing() -> None:
    mistral = PoolShares(16, full_bytes=0, window_bytes=1024, window=4096)
    assert mistral.fitting(1001 * 1024) == PoolSizes(4000, 1001)


def test_groups_of_layers() -> None:
    windows = (4, None, 8, 100)
    assert LayerGroups.of(windows) == LayerGroups((True, False, True, True), (0, 0, 1, 2), 100)
    assert LayerGroups.of(windows, longest=50) == LayerGroups((True, False, True, False), (0, 0, 1, 1), 8)
    assert LayerGroups.of(windows, layout="full") == LayerGroups((False,) * 4, (0, 1, 2, 3), 0)
    assert LayerGroups.of(windows).in_window("abcd") == ["a", "c", "d"]
    assert LayerGroups.of(windows).full("abcd") == ["b"]
