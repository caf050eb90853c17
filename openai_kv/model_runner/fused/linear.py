"""Linear layers whose weights are kept in the order in which the kernel reads them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from openai_kv.model_runner.fused import operators

DTYPES = (torch.float32, torch.bfloat16)


def is_linear(module: object) -> bool:
    """Exactly these classes: a subclass may compute something else."""
    return type(module) in (nn.Linear, Conv1D)


class PackedLinear(nn.Module):
    """One or several linear layers on the same input as one matrix; their outputs lie side by side.

    `brgemm_rows`: see operators.packed_linear.
    """

    brgemm_rows = 0

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        matrix = torch.cat([matrix_of(layer) for layer in layers]) if len(layers) > 1 else matrix_of(layers[0])
        self.columns, self.depth = matrix.shape
        self.packed = nn.Parameter(operators.pack_linear(matrix), requires_grad=False)
        self.bias = _joined_bias(layers)

    def forward(self, x: Tensor) -> Tensor:
        return operators.packed_linear(x, self.packed, self.bias, self.columns, self.brgemm_rows)


class QuantizedLinear(nn.Module):
    """A packed layer with its weights in 8 or 4 bits."""

    def __init__(self, layer: PackedLinear, bits: int) -> None:
        super().__init__()
        self.columns, self.bias, self.bits = layer.columns, layer.bias, bits
        matrix = operators.packed_rows(layer.packed, torch.arange(layer.columns), layer.depth)
        self.packed = nn.Buffer(operators.pack_quantized(matrix.float(), bits))

    def forward(self, x: Tensor) -> Tensor:
        return operators.quantized_linear(x, self.packed, self.bias, self.columns, self.bits)


class PackedEmbedding(nn.Module):
    """An embedding that reads its rows from the packed matrix of the head it is tied to."""

    def __init__(self, head: PackedLinear, scale: Tensor | None) -> None:
        super().__init__()
        self.packed, self.depth = head.packed, head.depth
        self.scale = None if scale is None else scale.to(head.packed.dtype)

    def forward(self, token_ids: Tensor) -> Tensor:
        rows = operators.packed_rows(self.packed, token_ids, self.depth)
        return rows if self.scale is None else rows * self.scale


def matrix_of(layer: Any) -> Tensor:
    """[columns, depth]"""
    weight: Tensor = layer.weight.detach()
    return weight.T if isinstance(layer, Conv1D) else weight


def _joined_bias(layers: Sequence[Any]) -> nn.Buffer | None:
    if all(layer.bias is None for layer in layers):
        return None
    parts = [
        torch.zeros(len(matrix_of(layer))) if layer.bias is None else layer.bias.detach().float() for layer in layers
    ]
    return nn.Buffer(torch.cat(parts))
