"""Few rows of a request in one step, bit by bit: each is what it would be in a step of its own. Drafts rely on it."""

from dataclasses import replace

import pytest
import torch

from openai_kv.config import default_home
from openai_kv.model_runner.attention.cpu import CpuBackend, load_cpu_backend
from tests.model_runner.attention_cases import Case, Step, coded_types, make_step, opened_types, supported_widths

pytestmark = pytest.mark.usefixtures("one_thread")
DRAFTED = Case(queries=(2, 5, 12, 17), contexts=(65, 514, 1030, 1545), block_size=32)  # over ends of tiles and splits
CASES = {
    "groups of 3": DRAFTED,
    "one head each": replace(DRAFTED, heads=2, kv_heads=2),
    "groups of 4": replace(DRAFTED, heads=8, kv_heads=2),
    "groups of 7": replace(DRAFTED, heads=7, kv_heads=1),
    "groups of 8": replace(DRAFTED, heads=16, kv_heads=2),
    "groups of 9": replace(DRAFTED, heads=9, kv_heads=1),
    "groups of 16": replace(DRAFTED, heads=16, kv_heads=1, dim=32),
    "sinks": replace(DRAFTED, sinks=True),
    "softcap": replace(DRAFTED, softcap=5.0),
    "window": replace(DRAFTED, window=33, sinks=True),
    "window over splits": replace(DRAFTED, window=700),
    "window from split to split": replace(DRAFTED, window=512, contexts=(1026, 1030, 1036, 1041)),
    "head_dim of no vector": replace(DRAFTED, dim=12),
    "that, groups of 16": replace(DRAFTED, heads=16, kv_heads=1, dim=12),
    "wide heads": replace(DRAFTED, heads=4, kv_heads=1, dim=256),
}
TYPES = [*((dtype, "") for dtype in (torch.float32, torch.bfloat16, torch.float16)), *coded_types()]
SHIPPED = [
    (*each, False) for each in TYPES if each not in opened_types()
]  # those are by row only where all prompts are


@pytest.fixture(scope="module")
def backend() -> CpuBackend:
    return load_cpu_backend(default_home() / "operators", print)


@pytest.mark.parametrize("width", supported_widths())
@pytest.mark.parametrize(("rows", "pool", "by_row"), [*SHIPPED, *((*each, True) for each in TYPES)])
@pytest.mark.parametrize("name", CASES)
def test_few_rows_are_what_each_is_alone(
    backend: CpuBackend, name: str, rows: torch.dtype, pool: str, by_row: bool, width: int
) -> None:
    step = make_step(CASES[name], rows, kv_format=pool)
    backend = CpuBackend(backend.operator, width, batch_invariant=by_row)
    together = run(backend, step)
    alone = [run(backend, only(step, row)) for row in range(len(together))]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(("rows", "pool"), opened_types())
def test_a_block_of_a_prompt_is_read_for_like_a_larger_one(backend: CpuBackend, rows: torch.dtype, pool: str) -> None:
    """Where keys are open all prompts come cut into blocks, and few rows must not cost what drafts do."""
    step = make_step(Case(queries=(32,), contexts=(544,), block_size=32), rows, kv_format=pool)
    assert torch.equal(run(backend, step)[16:], run(backend, only(step, 16, 16)))


def run(backend: CpuBackend, step: Step) -> torch.Tensor:
    return backend.forward(step.query, step.key, step.value, step.layer, step.metadata, step.options, None)


def only(step: Step, row: int, count: int = 1) -> Step:
    """The step of one row, or of `count` of a request, with the context up to there."""
    tables = step.metadata
    ends = tables.query_starts[1:].tolist()
    request = next(number for number, end in enumerate(ends) if row < end)
    context = tables.contexts[request] - (ends[request] - count - row)
    rows, one = slice(row, row + count), slice(request, request + 1)
    opened = tables.open and replace(
        tables.open,
        key_slots=tables.open.key_slots[rows],
        own_slots=tables.open.own_slots[one],
        filled_blocks=tables.open.filled_blocks[:0],
        filled_slots=tables.open.filled_slots[:0],
    )
    metadata = replace(
        tables,
        slot_mapping=tables.slot_mapping[rows],
        block_tables=tables.block_tables[one],
        query_starts=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([context], dtype=torch.int32),
        query_lens=(count,),
        contexts=(context,),
        open=opened,
    )
    return replace(step, query=step.query[rows], key=step.key[rows], value=step.value[rows], metadata=metadata)
