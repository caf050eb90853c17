import dataclasses

import pytest
import torch

from openai_kv.config import default_home
from openai_kv.model_runner.attention.cpu import CpuBackend, load_cpu_backend
from tests.model_runner.attention_cases import Case, Step, answer, make_step, mixed_types, supported_widths

CASES = {
    "smollm2": Case(),
    "blocks of 1": Case(block_size=1),
    "blocks of 7": Case(block_size=7, queries=(1, 5, 40), contexts=(300, 5, 93)),
    "blocks of 64": Case(block_size=64, queries=(1, 65, 3), contexts=(64, 65, 200)),
    "splits": Case(queries=(1, 2, 30), contexts=(1500, 600, 1100)),
    "a long prompt": Case(heads=4, kv_heads=2, dim=32, queries=(700,), contexts=(713,)),
    "shared blocks": Case(queries=(1, 1, 4, 9), contexts=(70, 90, 45, 100), shared=2),
    "a shared prefix": Case(queries=(1, 1, 1, 5, 1, 1), contexts=(400, 500, 333, 420, 330, 700), shared=20),
    "a shared prefix in splits": Case(sinks=True, queries=(1,) * 23, contexts=(1300,) * 20 + (1500,) * 3, shared=75),
    "shared, odd head_dim": Case(heads=6, kv_heads=3, dim=23, queries=(1,) * 4, contexts=(301,) * 4, shared=18),
    "shared, blocks of 7": Case(block_size=7, softcap=5.0, queries=(1,) * 9, contexts=(400,) * 9, shared=45),
    "one head each": Case(heads=4, kv_heads=4, dim=80, queries=(1, 33), contexts=(50, 64)),
    "one kv head": Case(heads=12, kv_heads=1, dim=96, queries=(1, 7), contexts=(129, 40)),
    "group of 7": Case(heads=14, kv_heads=2, dim=128, queries=(1, 1, 12), contexts=(33, 90, 30)),
    "wide heads": Case(heads=4, kv_heads=1, dim=256, queries=(1, 9), contexts=(140, 20)),
    "odd head_dim": Case(heads=6, kv_heads=3, dim=23, queries=(1, 2, 11), contexts=(70, 40, 30)),
    "window": Case(window=13, queries=(1, 1, 40), contexts=(200, 5, 130)),
    "window over splits": Case(window=700, queries=(1, 90), contexts=(1600, 900)),
    "window of 1": Case(window=1, queries=(1, 20), contexts=(65, 80)),
    "gemma 2": Case(heads=4, kv_heads=2, dim=256, window=70, softcap=5.0, queries=(1, 40), contexts=(100, 90)),
    "gpt-oss": Case(heads=16, kv_heads=2, window=33, sinks=True, queries=(1, 40), contexts=(600, 90)),
    "sinks and splits": Case(sinks=True, queries=(1, 3), contexts=(1200, 3)),
}
pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="session")
def backend() -> CpuBackend:
    return load_cpu_backend(default_home() / "operators", print)


def run(backend: CpuBackend, step: Step, mass: torch.Tensor | None = None) -> torch.Tensor:
    return backend.forward(step.query, step.key, step.value, step.layer, step.metadata, step.options, mass)


@pytest.mark.parametrize("width", supported_widths())
@pytest.mark.parametrize("name", CASES)
def test_float32_is_the_textbook_answer(backend: CpuBackend, name: str, width: int) -> None:
    step = make_step(CASES[name], torch.float32)
    mass = torch.ones(step.layer.key.shape[0])
    output = run(CpuBackend(backend.operator, width), step, mass)
    expected = answer(step)
    torch.testing.assert_close(output.double(), expected.output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mass.double(), expected.mass + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", supported_widths())
@pytest.mark.parametrize("name", ["smollm2", "splits", "odd head_dim", "gemma 2", "gpt-oss"])
def test_half_precision_is_the_answer_rounded_once(
    backend: CpuBackend, name: str, width: int, dtype: torch.dtype
) -> None:
    step = make_step(CASES[name], dtype)
    output = run(CpuBackend(backend.operator, width), step)
    torch.testing.assert_close(output.double(), answer(step).output, rtol=torch.finfo(dtype).eps / 2, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_exactly_the_steps_rows(backend: CpuBackend, dtype: torch.dtype) -> None:
    step = make_step(CASES["blocks of 7"], dtype)
    expected = step.layer.key.clone(), step.layer.value.clone()
    run(backend, step)
    slots, size = step.metadata.slot_mapping, step.layer.block_size
    for cache, rows, actual in zip(expected, (step.key, step.value), (step.layer.key, step.layer.value), strict=True):
        cache[slots // size, :, slots % size] = rows
        assert torch.equal(cache.nan_to_num(7), actual.nan_to_num(7))


@pytest.mark.parametrize(
    ("queries", "contexts", "shared", "group", "expected"),
    [
        ((1, 1, 1), (400, 500, 321), 20, 3, [[0, 3, 320]]),
        ((1, 1, 1), (400, 500, 320), 20, 3, [[0, 3, 256]]),  # each keeps its last position to itself
        ((1, 1), (400, 500), 15, 3, []),
        ((1, 5, 1, 1), (400,) * 4, 20, 3, [[2, 2, 320]]),
        ((1,) * 23, (400,) * 23, 19, 3, [[0, 21, 256], [21, 2, 256]]),  # 64 lanes
        ((1, 1), (400, 400), 20, 64, []),
    ],
)
def test_neighbours_share_what_they_begin_with(
    backend: CpuBackend,
    queries: tuple[int, ...],
    contexts: tuple[int, ...],
    shared: int,
    group: int,
    expected: list[list[int]],
) -> None:
    del backend  # loads the operators
    tables = make_step(Case(queries=queries, contexts=contexts, shared=shared), torch.float32).metadata
    where = tables.block_tables, tables.query_starts, tables.context_lens
    assert torch.ops.openai_kv.shared_prefixes(*where, 16, group).tolist() == expected


def test_a_request_does_not_depend_on_its_batch_or_the_threads(backend: CpuBackend) -> None:
    step = make_step(Case(queries=(1, 1, 80, 1), contexts=(1300, 1300, 80, 70)), torch.float32)
    mass = torch.zeros(2, step.layer.key.shape[0])
    alone = [run(backend, only(step, request), mass[0]) for request in range(4)]
    torch.set_num_threads(3)
    together = run(backend, step, mass[1])
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(mass[0], mass[1])


def only(step: Step, request: int) -> Step:
    starts = step.metadata.query_starts.tolist()
    rows = slice(starts[request], starts[request + 1])
    one = slice(request, request + 1)
    metadata = dataclasses.replace(
        step.metadata,
        slot_mapping=step.metadata.slot_mapping[rows],
        block_tables=step.metadata.block_tables[one],
        query_starts=torch.tensor([0, starts[request + 1] - starts[request]], dtype=torch.int32),
        context_lens=step.metadata.context_lens[one],
        query_lens=step.metadata.query_lens[one],
        contexts=step.metadata.contexts[one],
    )
    return dataclasses.replace(
        step, query=step.query[rows], key=step.key[rows], value=step.value[rows], metadata=metadata
    )


def test_extreme_scores_stay_finite(backend: CpuBackend) -> None:
    step = make_step(CASES["smollm2"], torch.float32)
    step = dataclasses.replace(step, query=step.query * 1e4)
    output = run(backend, step)
    torch.testing.assert_close(output.double(), answer(step).output, rtol=1e-2, atol=1e-2)


def test_a_block_or_slot_outside_the_pool_is_refused(backend: CpuBackend) -> None:
    step = make_step(CASES["smollm2"], torch.float32)
    tables = step.metadata.block_tables.clone()
    tables[1, 1] = step.layer.key.shape[0]
    with pytest.raises(RuntimeError, match="no block"):
        run(backend, dataclasses.replace(step, metadata=dataclasses.replace(step.metadata, block_tables=tables)))
    slots = step.metadata.slot_mapping - step.layer.key.shape[0] * step.layer.block_size
    with pytest.raises(RuntimeError, match="no slot"):
        run(backend, dataclasses.replace(step, metadata=dataclasses.replace(step.metadata, slot_mapping=slots)))


@pytest.mark.parametrize(("rows", "pool"), mixed_types())
@pytest.mark.parametrize("width", supported_widths())
@pytest.mark.parametrize("name", ["smollm2", "splits", "odd head_dim", "gpt-oss"])
def test_a_pool_of_another_type(
    backend: CpuBackend, name: str, width: int, rows: torch.dtype, pool: torch.dtype
) -> None:
    """The answer over what the pool holds, rounded once; of the step's own rows too."""
    step = make_step(CASES[name], rows, pool_dtype=pool)
    mass = torch.zeros(step.layer.key.shape[0])
    output = run(CpuBackend(backend.operator, width), step, mass)
    assert (output.dtype, step.layer.key.dtype) == (rows, pool)
    rtol = 1e-5 if rows == torch.float32 else torch.finfo(rows).eps / 2
    torch.testing.assert_close(output.double(), answer(step).output, rtol=rtol, atol=1e-5)
    torch.testing.assert_close(mass.double(), answer(step).mass, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pool", DTYPES)
def test_rows_are_written_as_torch_rounds_them(backend: CpuBackend, pool: torch.dtype) -> None:
    step = make_step(CASES["blocks of 7"], torch.float32, pool_dtype=pool)
    run(backend, step)
    slots, size = step.metadata.slot_mapping, step.layer.block_size
    assert torch.equal(step.layer.key[slots // size, :, slots % size], step.key.to(pool))


def test_rows_of_two_types_are_refused(backend: CpuBackend) -> None:
    step = make_step(CASES["smollm2"], torch.float32)
    with pytest.raises(RuntimeError, match="differ in dtype"):
        run(backend, dataclasses.replace(step, query=step.query.half()))


def test_rows_may_be_strided_in_every_dimension(backend: CpuBackend) -> None:
    step = make_step(CASES["smollm2"], torch.float32)
    expected = run(backend, step)
    strided = [torch.stack([rows, rows], -1)[..., 0] for rows in (step.query, step.key, step.value)]
    step = dataclasses.replace(step, query=strided[0], key=strided[1], value=strided[2])
    assert torch.equal(run(backend, step), expected)
