"""A step's requests as tensors."""

from dataclasses import replace
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import SamplingParams

CPU = torch.device("cpu")


def scheduled(token_ids: list[int], computed: int, block_ids: list[int]) -> ScheduledRequest:
    return ScheduledRequest("", token_ids, computed, block_ids, True, SamplingParams(max_tokens=1), 0, (), ())


def test_rows_positions_slots_and_tables() -> None:
    requests = [scheduled([7, 8, 9], 2, [5, 3, 99]), scheduled([4], 0, [6]), scheduled([1, 2], 6, [1, 2])]
    batch = InputBatch.build(requests, 4, CPU)
    assert batch.token_ids.tolist() == [[7, 8, 9, 4, 1, 2]]
    assert batch.positions.tolist() == [[2, 3, 4, 0, 6, 7]]
    assert batch.last_rows.tolist() == [2, 3, 5]
    metadata = batch.metadata
    assert metadata.slot_mapping.tolist() == [22, 23, 12, 24, 10, 11]
    assert metadata.block_tables.tolist() == [[5, 3], [6, 0], [1, 2]], "only what the context fills"
    assert metadata.query_starts.tolist() == [0, 3, 4, 6]
    assert metadata.context_lens.tolist() == [5, 1, 8]
    assert (metadata.query_lens, metadata.contexts) == ((3, 1, 2), (5, 1, 8))
    assert metadata.slot_mapping.dtype == torch.int64
    assert metadata.block_tables.dtype == metadata.query_starts.dtype == metadata.context_lens.dtype == torch.int32


def test_a_window_group_has_slots_and_tables_of_its_own() -> None:
    requests = [replace(scheduled([7, 8, 9], 6, [5, 3, 4]), window_block_ids=[0, 2, 1]), scheduled([4], 0, [6])]
    requests[1] = replace(requests[1], window_block_ids=[3])
    batch = InputBatch.build(requests, 4, CPU, windowed=True)
    assert batch.window is not None
    assert batch.window.block_tables.tolist() == [[0, 2, 1], [3, 0, 0]]
    assert batch.window.slot_mapping.tolist() == [10, 11, 4, 12]
    assert batch.window.contexts == batch.metadata.contexts
    assert InputBatch.build(requests, 4, CPU).window is None


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=6),
    st.integers(1, 17),
)
def test_every_row_gets_the_slot_of_its_position(shapes: list[tuple[int, int]], block_size: int) -> None:
    tables = [[100 * number + block for block in range(80)] for number in range(len(shapes))]
    requests = [
        scheduled(list(range(length)), computed, table)
        for (length, computed), table in zip(shapes, tables, strict=True)
    ]
    batch = InputBatch.build(requests, block_size, CPU)
    expected = [
        table[position // block_size] * block_size + position % block_size
        for (length, computed), table in zip(shapes, tables, strict=True)
        for position in range(computed, computed + length)
    ]
    assert batch.metadata.slot_mapping.tolist() == expected
    starts = pairwise(batch.metadata.query_starts.tolist())
    assert tuple(stop - start for start, stop in starts) == batch.metadata.query_lens
