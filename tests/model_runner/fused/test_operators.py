import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from openai_kv.model_runner.fused import operators
from tests.model_runner.attention_cases import supported_widths

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = (torch.float32, torch.bfloat16)
on_each_width = pytest.mark.parametrize("width", supported_widths())


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded_once(actual: Tensor, exact: Tensor) -> None:
    """But for the last bits of a float32 sum."""
    eps = 1e-5 if actual.dtype == torch.float32 else torch.finfo(actual.dtype).eps / 2
    torch.testing.assert_close(actual.double(), exact, rtol=eps * 1.01, atol=1e-4)


@on_each_width
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("depth", "columns"), [(64, 96), (7, 1), (130, 33), (33, 70)])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 11, 12, 13, 40])
def test_packed_linear(rows: int, depth: int, columns: int, dtype: torch.dtype, width: int) -> None:
    x, weight, bias = random(rows, depth, dtype=dtype), random(columns, depth, dtype=dtype, seed=1), random(columns)
    packed = operators.pack_linear(weight)
    for given in (None, bias):
        exact = x.double() @ weight.double().T + (0 if given is None else given.double())
        assert_rounded_once(operators.packed_linear(x, packed, given, columns, width=width), exact)


@on_each_width
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_the_others_or_the_threads(dtype: torch.dtype, width: int) -> None:
    x, packed = random(600, 576, dtype=dtype), operators.pack_linear(random(100, 576, dtype=dtype, seed=1))
    alone = torch.cat([operators.packed_linear(row[None], packed, None, 100, width=width) for row in x])
    torch.set_num_threads(3)
    for count in (2, 11, 12, 30, 600):
        assert torch.equal(operators.packed_linear(x[:count], packed, None, 100, width=width), alone[:count])


@pytest.mark.skipif(not torch.cpu._is_amx_tile_supported(), reason="torch's brgemm takes packed weights with AMX only")
@pytest.mark.parametrize("rows", [1, 63, 64, 130])
def test_brgemm_gives_the_same(rows: int) -> None:
    assert operators.has_brgemm()
    x, weight, bias = random(rows, 192)[:, :96].bfloat16(), random(70, 96, dtype=torch.bfloat16, seed=1), random(70)
    packed = operators.pack_linear(weight)
    for given in (None, bias):
        exact = x.double() @ weight.double().T + (0 if given is None else given.double())
        assert_rounded_once(operators.packed_linear(x, packed, given, 70, brgemm_rows=1), exact)
    ours = operators.packed_linear(x, packed, None, 70)
    assert torch.equal(operators.packed_linear(x, packed, None, 70, brgemm_rows=rows + 1), ours)


def test_packed_linear_takes_strided_and_deeper_shapes() -> None:
    x, weight = random(2, 5, 40), random(24, 20, seed=1)
    packed = operators.pack_linear(weight.T.contiguous().T)
    for part in (x[..., :20], x[..., ::2], x[..., :20].transpose(0, 1)):
        torch.testing.assert_close(operators.packed_linear(part, packed, None, 24), part @ weight.T)
    assert operators.packed_linear(x[:0, :, :20], packed, None, 24).shape == (0, 5, 24)


@pytest.mark.parametrize("dtype", DTYPES)
def test_packed_rows_are_the_matrix(dtype: torch.dtype) -> None:
    weight, rows = random(70, 33, dtype=dtype), torch.tensor([[0, 69, 31], [32, 5, 5]])
    assert torch.equal(operators.packed_rows(operators.pack_linear(weight), rows, 33), weight[rows])


def test_what_does_not_fit_is_refused() -> None:
    packed = operators.pack_linear(random(40, 16))
    for x, bias, columns in (
        (random(2, 14), None, 40),
        (random(2, 16), None, 80),
        (random(2, 16), random(39), 40),
        (random(2, 16, dtype=torch.bfloat16), None, 40),
    ):
        with pytest.raises(RuntimeError, match="packed_linear"):
            operators.packed_linear(x, packed, bias, columns)
    with pytest.raises(RuntimeError, match="pack_linear"):
        operators.pack_linear(random(4, 4, dtype=torch.float16))


@on_each_width
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("size", [64, 23, 5])
def test_rms_norm(size: int, dtype: torch.dtype, width: int) -> None:
    x, weight = random(3, 4, size, dtype=dtype) * 3, random(size, seed=1)
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    assert_rounded_once(operators.rms_norm(x, weight, 1e-5, False, width), exact * weight)
    rounded = exact.to(dtype).double() * weight
    actual = operators.rms_norm(x[:, 1:3], weight, 1e-5, True, width).double()
    torch.testing.assert_close(actual, rounded[:, 1:3], rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@on_each_width
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("size", [64, 21])
def test_gated(size: int, dtype: torch.dtype, width: int) -> None:
    x = random(5, 2 * size, dtype=dtype) * 4
    x[0, :3] = torch.tensor([-300.0, 300.0, 0.0])
    gate, up = x.double().tensor_split(2, dim=-1)
    for activation, exact in ((operators.SILU, silu(gate)), (operators.GELU_TANH, gelu(gate, approximate="tanh"))):
        eps = max(torch.finfo(dtype).eps, 1e-5)
        actual = operators.gated(x, activation, width).double()
        torch.testing.assert_close(actual, exact * up, rtol=eps * 1.1, atol=1e-4)


@on_each_width
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("rotary", [64, 20])
def test_rotate(rotary: int, dtype: torch.dtype, width: int) -> None:
    rows = random(4, 5, 64, dtype=dtype)
    cos, sin = random(4, rotary, dtype=dtype, seed=1), random(4, rotary, dtype=dtype, seed=2)
    wide, (first, second) = rows.double(), rows[..., :rotary].double().tensor_split(2, dim=-1)
    turned = wide[..., :rotary] * cos[:, None].double() + torch.cat([-second, first], -1) * sin[:, None].double()
    exact = torch.cat([turned, wide[..., rotary:]], -1)
    expected_others = rows[:, 3:].clone()
    operators.rotate(rows[:, :1], cos, sin, width)
    operators.rotate(rows[:, 1:3], cos[None], sin[None], width)
    assert_rounded_once(rows[:, :3], exact[:, :3])
    assert torch.equal(rows[:, 3:], expected_others)
