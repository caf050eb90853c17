"""The portable backend against the textbook, in all types, for every shape and option of a layer."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from openai_kv.model_runner.attention import pieces
from openai_kv.model_runner.attention.pieces import cut
from openai_kv.model_runner.attention.sdpa import SdpaBackend
from tests.model_runner.attention_cases import Case, Step, answer, coded_types, make_step, mixed_types

pytestmark = pytest.mark.usefixtures("one_thread")

FRESH = Case(queries=(45,), contexts=(45,))
CASES = {
    "decode and prefill": Case(),
    "a fresh prompt": FRESH,
    "a fresh prompt beyond the window": replace(FRESH, window=20),
    "a fresh prompt within the window": replace(FRESH, window=45),
    "fresh prompts": Case(queries=(12, 30), contexts=(12, 30)),
    "many decodes": Case(queries=(1,) * 7, contexts=(3, 200, 17, 16, 33, 90, 1)),
    "blocks of 7": Case(block_size=7),
    "no groups": Case(heads=4, kv_heads=4),
    "one K/V head": Case(heads=8, kv_heads=1),
    "shared blocks": Case(shared=1, queries=(1, 5), contexts=(40, 45)),
    "window": Case(window=11, queries=(1, 1, 21, 1), contexts=(1, 37, 50, 200)),
    "window of one block": Case(window=16, queries=(1, 20), contexts=(64, 64)),
    "soft-cap": Case(softcap=3.0, window=30),
    "sinks": Case(sinks=True, window=24),
    **{f"head_dim {dim}": Case(heads=4, kv_heads=2, dim=dim) for dim in (64, 80, 96, 128, 256)},
}


def run(step: Step, mass: torch.Tensor | None = None) -> torch.Tensor:
    return SdpaBackend().forward(step.query, step.key, step.value, step.layer, step.metadata, step.options, mass)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_the_textbook_answer(name: str, dtype: torch.dtype) -> None:
    step = make_step(CASES[name], dtype)
    output = run(step)
    assert output.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(output.double(), answer(step).output, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("rows", "pool"), [*mixed_types(), *coded_types()])
@pytest.mark.parametrize("name", ["decode and prefill", "a fresh prompt", "soft-cap", "sinks"])
def test_a_pool_of_another_type(name: str, rows: torch.dtype, pool: str) -> None:
    """The textbook's answer over what the pool holds, a fresh prompt's own rows as it holds them too."""
    step = make_step(CASES[name], rows, kv_format=pool)
    output = run(step)
    assert output.dtype == rows
    tolerance = 1e-5 if rows == torch.float32 else 4 * torch.finfo(rows).eps
    torch.testing.assert_close(output.double(), answer(step).output, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_mass_is_added_and_the_output_stays(name: str) -> None:
    step = make_step(CASES[name], torch.float32)
    mass = torch.ones(step.layer.key.shape[0])
    output = run(step, mass)
    torch.testing.assert_close(mass.double(), answer(step).mass + 1, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(output.double(), answer(step).output, rtol=1e-5, atol=1e-5)


def test_long_runs_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "MAX_MASK_ELEMENTS", 64)
    for case in (Case(queries=(1, 40), contexts=(9, 60)), Case(window=5, queries=(40,), contexts=(60,))):
        step = make_step(case, torch.float32)
        parts = cut(step.metadata, step.layer.block_size, case.window)
        assert len(parts) > 2
        assert sorted(torch.cat([part.rows for part in parts]).tolist()) == list(range(sum(case.queries)))
        mass = torch.zeros(step.layer.key.shape[0])
        torch.testing.assert_close(run(step, mass).double(), answer(step).output, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(mass.double(), answer(step).mass, rtol=1e-5, atol=1e-5)


def test_single_rows_are_padded_to_less_than_twice_their_blocks() -> None:
    contexts = (16, 17, 40, 100, 130, 700, 1000)
    step = make_step(Case(queries=(1,) * 7, contexts=contexts), torch.float32)
    parts = cut(step.metadata, 16, None)
    read = sum(part.block_ids.numel() for part in parts)
    assert read < 2 * sum(-(-context // 16) for context in contexts)
    assert 1 < len(parts) < len(contexts)


def test_a_window_reads_only_its_blocks() -> None:
    step = make_step(Case(queries=(1, 20), contexts=(900, 1000)), torch.float32)
    windowed = sum(part.block_ids.numel() for part in cut(step.metadata, 16, 32))
    assert windowed <= (32 // 16 + 1) + (52 // 16 + 2)


def test_a_new_step_is_cut_anew() -> None:
    backend = SdpaBackend()
    for case in pairwise([Case(), Case(queries=(4,), contexts=(9,)), Case()]):
        for step in (make_step(one, torch.float32) for one in case):
            output = backend.forward(step.query, step.key, step.value, step.layer, step.metadata, step.options, None)
            torch.testing.assert_close(output.double(), answer(step).output, rtol=1e-5, atol=1e-5)
