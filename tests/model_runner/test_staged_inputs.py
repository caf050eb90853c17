import pytest
import torch

from openai_kv.model_runner.staged_inputs import StagedInputs
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import SamplingParams

SIZE, COUNT = 4, 3


class Staging:
    """Inputs are the numbers of the rows that were written, counted over all steps."""

    def __init__(self) -> None:
        self.staged = StagedInputs(COUNT, 2, 1, SIZE, torch.float32, torch.device("cpu"))
        self.written = 0

    def step(self, *parts: tuple[list[int], int, int]) -> None:
        """Block table, tokens computed, rows."""
        total = sum(rows for _, _, rows in parts)
        self.staged.begin([request(*part) for part in parts])
        inputs = torch.arange(self.written, self.written + total).float()[None, :, None]
        for layer in range(2):
            self.staged.take(layer, inputs + 1000 * layer)
        self.staged.end()
        self.written += total

    def pop(self, *blocks: int) -> dict[int, list[int]]:
        found = self.staged.pop(blocks)
        for states in found.values():
            assert torch.equal(states[0] + 1000, states[1])
        return {block: states[0].flatten().int().tolist() for block, states in found.items()}


def request(table: list[int], computed: int, rows: int) -> ScheduledRequest:
    return ScheduledRequest("r", [7] * rows, computed, table, False, SamplingParams(max_tokens=1), 0, (), ())


def test_a_block_comes_out_once_when_all_its_rows_are_there() -> None:
    staging = Staging()
    staging.step(([9, 5], 0, 6))
    assert staging.pop(9, 5) == {9: [0, 1, 2, 3]}
    assert staging.pop(9) == {}
    staging.step(([9, 5], 6, 1), ([8], 0, 2))
    staging.step(([8], 2, 1), ([9, 5], 7, 1))
    assert staging.pop(8, 5) == {5: [4, 5, 6, 10]}


def test_a_block_that_is_given_to_another_starts_anew() -> None:
    staging = Staging()
    staging.step(([9], 0, 4))
    staging.step(([9], 0, 2))
    assert staging.pop(9) == {}
    staging.step(([9], 2, 2))
    assert staging.pop(9) == {9: [4, 5, 6, 7]}


def test_a_block_that_is_written_otherwise_does_not_come_out() -> None:
    staging = Staging()
    staging.step(([9], 0, 4))
    staging.staged.forget([9, 1])
    assert staging.pop(9) == {}
    staging.step(([9], 2, 2))
    assert staging.pop(9) == {}, "its first two tokens were copied there"


def test_drafts_that_did_not_come_true_are_written_over() -> None:
    staging = Staging()
    staging.step(([9, 5], 0, 6))
    staging.step(([9, 5], 3, 2))
    assert staging.pop(9) == {9: [0, 1, 2, 6]}
    staging.step(([9, 5], 5, 3))
    assert staging.pop(5) == {5: [7, 8, 9, 10]}


def test_the_least_recently_written_loses_its_slot() -> None:
    staging = Staging()
    for block in (1, 2, 3):
        staging.step(([block], 0, 2))
    staging.step(([1], 2, 1))
    staging.step(([4], 0, 4))
    for block in (2, 1, 3):
        staging.step(([block], 3, 1) if block == 1 else ([block], 2, 2))
    assert staging.pop(1, 2, 3, 4) == {1: [0, 1, 6, 13], 3: [4, 5, 14, 15], 4: [7, 8, 9, 10]}


def test_a_step_of_more_blocks_than_slots_is_not_seen() -> None:
    staging = Staging()
    staging.step(([1], 0, 2))
    staging.step(([1, 2, 3, 4], 2, 14))
    assert staging.pop(1, 2, 3, 4) == {}
    staging.step(([5, 6, 7], 0, 12))
    assert sorted(staging.pop(5, 6, 7)) == [5, 6, 7], "all slots are free"


def test_a_step_that_not_all_layers_have_shown_is_not_there() -> None:
    staging = Staging()
    staging.step(([9], 0, 4), ([8], 0, 2))
    staging.staged.begin([request([8], 2, 2)])
    staging.staged.take(0, torch.zeros(1, 2, 1))
    staging.staged.end()
    assert staging.pop(8, 9) == {9: [0, 1, 2, 3]}


def test_what_runs_outside_a_step_is_not_kept() -> None:
    staging = Staging()
    staging.step(([9], 0, 4))
    staging.staged.take(0, torch.full((1, 4, 1), -1.0))
    assert staging.pop(9) == {9: [0, 1, 2, 3]}


@pytest.mark.parametrize("seed", range(5))
def test_it_never_hands_out_what_another_has_written(seed: int) -> None:
    """Against a plain record of every block's rows, over random steps."""
    generator, staging = torch.Generator().manual_seed(seed), Staging()
    rows: dict[int, list[int]] = {}
    for _ in range(200):
        block, start, count = (int(torch.randint(high, (1,), generator=generator)) for high in (6, 5, 4))
        start = start if start <= len(rows.get(block, ())) and start < SIZE else 0
        count = min(count + 1, SIZE - start)
        if start == 0 and count == 3:
            staging.staged.forget([block])  # loaded from elsewhere
            rows[block] = [-1] * SIZE
            continue
        rows[block] = [*rows.get(block, [])[:start], *range(staging.written, staging.written + count)]
        staging.step(([block], start, count))
        for popped, found in staging.pop(*range(3)).items():
            assert found == rows[popped]
