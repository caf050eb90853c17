"""Rows as codes: how far they are from what was given, and what no scale can hide."""

import pytest
import torch
from torch import Tensor

from openai_kv.model_runner.codes import decode, encode

DTYPES = (torch.int8, torch.uint8)


def rows(dim: int = 64) -> Tensor:
    """Small and large ones, some far from zero."""
    numbers = torch.randn(500, 3, dim, generator=torch.Generator().manual_seed(0))
    return numbers * torch.logspace(-6, 6, 500)[:, None, None] + torch.linspace(-9, 9, 500)[:, None, None]


def round_trip(given: Tensor, dtype: torch.dtype) -> Tensor:
    return decode(*encode(given, dtype))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_int8_is_half_a_step_away_at_most(given: torch.dtype) -> None:
    numbers = rows().to(given).float()
    step = numbers.abs().amax(-1, keepdim=True) / 127
    assert ((round_trip(numbers, torch.int8) - numbers).abs() <= 0.502 * step * (1 + 2**-8)).all()


def test_int4_is_half_a_step_of_its_half_away_at_most() -> None:
    """What is no bfloat16 itself may lie half a unit of that type below the lowest value that there is."""
    numbers = rows()
    halves = numbers.unflatten(-1, (2, -1))
    step = (halves.amax(-1, keepdim=True) - halves.amin(-1, keepdim=True)) / 15
    lost = 2**-8 * halves.amin(-1, keepdim=True).abs()
    bound = (0.56 * step + lost).expand_as(halves).flatten(-2)
    assert ((round_trip(numbers, torch.uint8) - numbers).abs() <= bound).all()


def test_a_head_of_two_scales() -> None:
    """A half of large numbers does not spoil the other."""
    numbers = torch.cat((torch.randn(9, 32), 1000 * torch.randn(9, 32)), -1)
    found = round_trip(numbers, torch.uint8)
    assert (found - numbers)[:, :32].abs().max() < 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.0, 1.5, -384.0])
def test_rows_that_are_all_alike_stay_what_they_are(dtype: torch.dtype, value: float) -> None:
    given = torch.full((2, 8), value)
    torch.testing.assert_close(round_trip(given, dtype), given, rtol=2**-8, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(dtype: torch.dtype) -> None:
    codes, scales = encode(rows(), dtype)
    assert codes.dtype == dtype and scales.dtype == torch.bfloat16
    assert (codes.shape[-1], scales.shape[-1]) == ((64, 1) if dtype == torch.int8 else (32, 4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_shows(dtype: torch.dtype) -> None:
    given = rows()[:2]
    given[0, 0, 5] = float("nan")
    found = round_trip(given, dtype)
    assert found[0, 0, 5].isnan() and found[1].isfinite().all()
