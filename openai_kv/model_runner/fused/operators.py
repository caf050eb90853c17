"""The C++ operators of a decoder layer as functions; shapes and types are checked there.

`width`: at most so many floats per vector (16, 8 or 4; 0: as many as there are), for tests.
"""

from typing import Any

import torch
from torch import Tensor

SILU, GELU_TANH = 0, 1


def _ops() -> Any:
    return torch.ops.openai_kv


def pack_linear(weight: Tensor) -> Tensor:
    """weight [columns, depth], float32 or bfloat16, in the order in which `packed_linear` reads it."""
    packed: Tensor = _ops().pack_linear.default(weight)
    return packed


def packed_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, columns: int, brgemm_rows: int = 0, width: int = 0
) -> Tensor:
    """x [.., depth] @ weight.T + bias; bias float32. A row's result doesn't depend on the other rows.

    But if there are `brgemm_rows` or more (0: never), in bfloat16, torch's brgemm multiplies them, in its own ways.
    """
    out: Tensor = _ops().packed_linear.default(x, weight, bias, columns, brgemm_rows, width)
    return out


def has_brgemm() -> bool:
    """Whether torch has a brgemm for this machine."""
    return bool(_ops().has_brgemm.default())


def packed_rows(weight: Tensor, rows: Tensor, depth: int) -> Tensor:
    """Rows of the matrix that was packed: rows [..] int64 -> [.., depth]."""
    if weight.dtype == torch.float32:  # [panels, depth / 2, 2, panel]
        panel = weight.shape[3]
        return weight[rows // panel, :, :, rows % panel].flatten(-2)[..., :depth]
    panel = weight.shape[2]  # [panels, depth / 2, panel, 2]
    return weight[rows // panel, :, rows % panel].flatten(-2)[..., :depth]


def pack_quantized(weight: Tensor, bits: int) -> Tensor:
    """weight [columns, depth], float32, as `quantized_linear` reads it.

    In 8 bits with a scale for each 32 of a row, or in 4 with a scale and a minimum for each.
    """
    packed: Tensor = _ops().pack_quantized.default(weight, bits)
    return packed


def quantized_linear(x: Tensor, weight: Tensor, bias: Tensor | None, columns: int, bits: int, width: int = 0) -> Tensor:
    """x [.., depth] @ weight.T + bias; x is made int8, with a scale for each 32 of a row. bias float32."""
    out: Tensor = _ops().quantized_linear.default(x, weight, bias, columns, bits, width)
    return out


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, rounds: bool, width: int = 0) -> Tensor:
    """Over the last dimension; weight float32. `rounds`: to x's type before the weight is applied, as Llama does."""
    out: Tensor = _ops().rms_norm.default(x, weight, epsilon, rounds, width)
    return out


def gated(gates_and_ups: Tensor, activation: int, width: int = 0) -> Tensor:
    """[.., 2 * size], gates first -> act(gates) * ups [.., size]"""
    out: Tensor = _ops().gated.default(gates_and_ups, activation, width)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor, width: int = 0) -> None:
    """Rotate x [T, heads, head_dim] in place by cos and sin [.., T, rotary_dim], first half against second (Llama)."""
    _ops().rotate.default(x, cos, sin, width)
