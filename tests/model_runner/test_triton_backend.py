"""The Triton kernels against the textbook, in Triton's interpreter, and compiled for a GPU that need not be there."""

import dataclasses
import os
import subprocess
import sys

import pytest
import torch

from tests.model_runner.attention_cases import Case, Step, answer, make_step, mixed_types

pytest.importorskip("triton")

from openai_kv.model_runner.attention.triton import TritonBackend

CASES = {
    "smollm2": Case(),
    "blocks of 1": Case(block_size=1, contexts=(1, 30, 40)),
    "blocks of 7": Case(block_size=7, queries=(1, 5, 40), contexts=(90, 5, 93)),
    "blocks of 256": Case(block_size=256, queries=(1, 3), contexts=(300, 200)),
    "splits": Case(queries=(1, 2), contexts=(1100, 600)),
    "a window over splits": Case(queries=(1, 1), contexts=(1100, 40), window=700),
    "odd head_dim": Case(heads=6, kv_heads=3, dim=23, queries=(1, 2, 11), contexts=(70, 40, 30)),
    "a group of 7": Case(heads=14, kv_heads=2, dim=128, queries=(1, 12), contexts=(33, 30)),
    "a group of 20": Case(heads=20, kv_heads=1, dim=8, queries=(1, 3), contexts=(33, 30)),
    "wide heads": Case(heads=4, kv_heads=1, dim=256, queries=(1, 9), contexts=(70, 20)),
    "window": Case(window=13, queries=(1, 1, 40), contexts=(200, 5, 130)),
    "gemma 2": Case(heads=4, kv_heads=2, window=30, softcap=5.0, queries=(1, 40), contexts=(100, 90)),
    "gpt-oss": Case(heads=8, kv_heads=1, window=33, sinks=True, queries=(1, 20), contexts=(100, 70)),
    "sinks and splits": Case(sinks=True, queries=(1, 3), contexts=(700, 3)),
}
pytestmark = pytest.mark.usefixtures("one_thread")


def run(step: Step, mass: torch.Tensor | None = None) -> torch.Tensor:
    backend = TritonBackend(programs=64)
    return backend.forward(step.query, step.key, step.value, step.layer, step.metadata, step.options, mass)


@pytest.mark.parametrize("name", CASES)
def test_float32_is_the_textbook_answer(name: str) -> None:
    step = make_step(CASES[name], torch.float32)
    output = run(step)
    torch.testing.assert_close(output.double(), answer(step).output, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["blocks of 7", "a window over splits", "gemma 2", "gpt-oss"])
def test_attention_mass(name: str) -> None:
    step = make_step(CASES[name], torch.float32)
    mass = torch.ones(step.layer.key.shape[0])
    output = run(step, mass)
    expected = answer(step)
    torch.testing.assert_close(output.double(), expected.output, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mass.double(), expected.mass + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["blocks of 7", "sinks and splits"])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """The softmax weights are rounded to the type too before they are multiplied; the interpreter cuts bfloat16 off."""
    step = make_step(CASES[name], dtype)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(run(step).double(), answer(step).output, rtol=3 * eps, atol=3 * eps)


@pytest.mark.parametrize(("rows", "pool"), mixed_types())
def test_a_pool_of_another_type(rows: torch.dtype, pool: torch.dtype) -> None:
    """Multiplied in float32; so the answer over what the pool holds, rounded once."""
    step = make_step(CASES["odd head_dim"], rows, pool_dtype=pool)
    output = run(step)
    assert (output.dtype, step.layer.key.dtype) == (rows, pool)
    rtol = 1e-5 if rows == torch.float32 else torch.finfo(rows).eps
    torch.testing.assert_close(output.double(), answer(step).output, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "pool"), [(torch.float32, torch.float32), (torch.float32, torch.float16), (torch.bfloat16, torch.bfloat16)]
)
def test_writes_exactly_the_steps_rows(rows: torch.dtype, pool: torch.dtype) -> None:
    step = make_step(CASES["odd head_dim"], rows, pool_dtype=pool)
    expected = step.layer.key.clone(), step.layer.value.clone()
    run(step)
    slots, size = step.metadata.slot_mapping, step.layer.block_size
    for cache, given, actual in zip(expected, (step.key, step.value), (step.layer.key, step.layer.value), strict=True):
        cache[slots // size, :, slots % size] = given.to(pool)
        assert torch.equal(cache.nan_to_num(7), actual.nan_to_num(7))


def test_rows_may_be_strided_in_every_dimension() -> None:
    step = make_step(CASES["odd head_dim"], torch.float32)
    expected = run(step)
    strided = [torch.stack([rows, rows], -1)[..., 0] for rows in (step.query, step.key, step.value)]
    step = dataclasses.replace(step, query=strided[0], key=strided[1], value=strided[2])
    assert torch.equal(run(step), expected)


def test_the_kernels_compile_for_hopper() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.model_runner.compile_kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["attend", "merge", "weigh", "write"]
