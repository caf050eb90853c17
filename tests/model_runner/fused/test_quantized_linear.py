"""The operators of linear layers with int8 and int4 weights."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from openai_kv.model_runner.fused import operators
from openai_kv.model_runner.quantization import INT4, INT8, WeightFormat
from tests.model_runner.attention_cases import supported_widths
from tests.model_runner.fused.test_operators import DTYPES, random

pytestmark = pytest.mark.usefixtures("one_thread")
on_each_width = pytest.mark.parametrize("width", supported_widths())
in_each_format = pytest.mark.parametrize("kind", [INT8, INT4], ids=["int8", "int4"])


def rounded(rows: Tensor, group: int, levels: int) -> Tensor:
    """Each group of a row to multiples of 1/levels of its largest number."""
    groups = pad(rows, (0, -rows.shape[1] % group)).unflatten(1, (-1, group))
    most = groups.abs().amax(-1, keepdim=True)
    result: Tensor = (groups * (levels / most).nan_to_num(posinf=0)).round() * (most / levels)
    return result.flatten(1)[:, : rows.shape[1]]


def unpacked(packed: Tensor, columns: int, depth: int, kind: WeightFormat) -> Tensor:
    """The weights that the integers stand for [columns, depth]: what ones of the depth are multiplied with."""
    return operators.quantized_linear(torch.eye(depth), packed, None, columns, kind.bits).T


@on_each_width
@in_each_format
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("depth", "columns"), [(64, 96), (7, 1), (130, 33), (192, 70)])
@pytest.mark.parametrize("rows", [1, 2, 6, 7, 40])
def test_it_is_what_the_rounded_numbers_give(
    rows: int, depth: int, columns: int, dtype: torch.dtype, kind: WeightFormat, width: int
) -> None:
    x, weight, bias = random(rows, depth, dtype=dtype), random(columns, depth, seed=1), random(columns)
    x[-1, :64] = 0
    packed = operators.pack_quantized(weight, kind.bits)
    assert packed.nbytes == kind.nbytes(columns, depth)
    exact = rounded(x.float(), kind.group, 127).double() @ unpacked(packed, columns, depth, kind).double().T + bias
    actual = operators.quantized_linear(x, packed, bias, columns, kind.bits, width).double()
    # In bfloat16 some numbers lie halfway between two multiples, and which is taken depends on the last bit.
    assert (actual - exact).norm() < (4e-6 if dtype == torch.float32 else 6e-3) * exact.norm()


def test_int8_weights_are_rounded_to_the_nearest() -> None:
    weight = random(33, 130)
    packed = operators.pack_quantized(weight, 8)
    apart = unpacked(packed, 33, 130, INT8) - weight
    most = pad(weight, (0, 30)).unflatten(1, (-1, 32)).abs().amax(-1).repeat_interleave(32, 1)[:, :130]
    assert (apart.abs() <= 0.5 * 1.06 * most / 127).all(), "half a step, and the scale is in float16"


def test_int4_weights_are_off_by_half_a_step_at_most() -> None:
    weight = random(33, 130)
    groups = pad(weight, (0, 30), value=float("nan")).unflatten(1, (-1, 32))
    lows, highs = groups.nan_to_num(torch.inf).amin(-1), groups.nan_to_num(-torch.inf).amax(-1)
    apart = pad(unpacked(operators.pack_quantized(weight, 4), 33, 130, INT4) - weight, (0, 30)).unflatten(1, (-1, 32))
    step = ((highs - lows) / 15)[..., None]
    assert (apart.abs() <= 0.7 * step + 1e-6).all(), "half a step, but least squares may move an end a little"
    assert apart.norm() < 0.09 * weight.norm()


@pytest.mark.parametrize("offset", [-0.4, 0.0, 3.0])
def test_numbers_from_a_grid_come_back(offset: float) -> None:
    """A file in llama.cpp's Q4_1, read as bfloat16, loses nothing more."""
    integers = torch.randint(16, (64, 18, 32), generator=torch.Generator().manual_seed(0))
    integers[..., :2] = torch.tensor([0, 15])
    scales = (random(64, 18, 1, seed=1).abs() / 100 + 1e-3).half().float()
    minimums = (-7.5 * scales + offset * scales + random(64, 18, 1, seed=2) / 1000).half().float()
    exact = (integers * scales + minimums).flatten(1)
    stored = exact.bfloat16().float()
    back = unpacked(operators.pack_quantized(stored, 4), 64, 576, INT4)
    largest = exact.unflatten(1, (18, 32)).abs().amax(-1).repeat_interleave(32, 1)
    assert ((back - exact).abs() <= largest * 2**-8).all()
    assert (back - exact).norm() < 0.6 * (stored - exact).norm(), "the grid is found again behind the rounding"


@in_each_format
def test_all_alike_and_all_zero(kind: WeightFormat) -> None:
    weight = torch.zeros(3, 70)
    weight[1] = -0.25
    back = unpacked(operators.pack_quantized(weight, kind.bits), 3, 70, kind)
    torch.testing.assert_close(back, weight, rtol=2**-11, atol=0)


@on_each_width
@in_each_format
def test_rows_do_not_depend_on_the_others_or_the_threads(kind: WeightFormat, width: int) -> None:
    x, packed = random(100, 576, dtype=torch.bfloat16), operators.pack_quantized(random(70, 576, seed=1), kind.bits)
    alone = torch.cat([operators.quantized_linear(row[None], packed, None, 70, kind.bits, width) for row in x])
    torch.set_num_threads(3)
    for count in (2, 6, 7, 100):
        actual = operators.quantized_linear(x[:count], packed, None, 70, kind.bits, width)
        assert torch.equal(actual, alone[:count])


def test_it_takes_strided_and_deeper_shapes() -> None:
    x, packed = random(2, 5, 80), operators.pack_quantized(random(24, 40, seed=1), 4)
    for part in (x[..., :40], x[..., ::2], x[..., :40].transpose(0, 1)):
        expected = operators.quantized_linear(part.contiguous(), packed, None, 24, 4)
        assert torch.equal(operators.quantized_linear(part, packed, None, 24, 4), expected)
    assert operators.quantized_linear(x[:0, :, :40], packed, None, 24, 4).shape == (0, 5, 24)


def test_what_does_not_fit_is_refused() -> None:
    packed = operators.pack_quantized(random(40, 64), 4)
    for x, bias, columns, bits in (
        (random(2, 65), None, 40, 4),
        (random(2, 64), None, 80, 4),
        (random(2, 64), None, 40, 8),
        (random(2, 64), None, 40, 5),
        (random(2, 64), random(39), 40, 4),
        (random(2, 64, dtype=torch.float16), None, 40, 4),
    ):
        with pytest.raises(RuntimeError, match="quantized_linear"):
            operators.quantized_linear(x, packed, bias, columns, bits)
    for weight, bits in ((random(4, 4, dtype=torch.bfloat16), 4), (random(4, 4), 3)):
        with pytest.raises(RuntimeError, match="pack_quantized"):
            operators.pack_quantized(weight, bits)
