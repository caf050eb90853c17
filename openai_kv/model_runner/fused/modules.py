"""Modules that stand in for a family's own; whether they compute the same is tried out at load."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.attention.interface import STEP
from openai_kv.model_runner.fused import operators
from openai_kv.model_runner.fused.linear import PackedLinear


class FusedNorm(nn.Module):
    """RMSNorm. `plus_one`: the weight is kept less 1 (Gemma); `rounds`: see operators.rms_norm."""

    def __init__(self, norm: Any, *, plus_one: bool, rounds: bool) -> None:
        super().__init__()
        self.weight = nn.Buffer(norm.weight.detach().float() + float(plus_one))
        self.epsilon = float(getattr(norm, "variance_epsilon", getattr(norm, "eps", 0.0)))
        self.rounds = rounds

    def forward(self, x: Tensor) -> Tensor:
        return operators.rms_norm(x, self.weight, self.epsilon, self.rounds)


class FusedMLP(nn.Module):
    """down(act(gate(x)) * up(x)); `inputs` are gate and up, or one layer that is both."""

    def __init__(self, inputs: Sequence[nn.Module], down: nn.Module, activation: int) -> None:
        super().__init__()
        self.gate_up, self.down = PackedLinear(inputs), PackedLinear([down])
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(operators.gated(self.gate_up(x), self.activation))
        return out


class FusedAttention(nn.Module):
    """Projections in one matrix, norms of heads if there are any, rotation, paged attention, output projection.

    `inputs` are q, k and v, or one layer that is all of them.
    """

    def __init__(
        self,
        inputs: Sequence[nn.Module],
        output: nn.Module,
        norms: Sequence[nn.Module],
        *,
        layer_idx: int,
        options: AttentionOptions,
        heads: tuple[int, int],
    ) -> None:
        super().__init__()
        self.qkv, self.output = PackedLinear(inputs), PackedLinear([output])
        self.norms = nn.ModuleList(norms)  # of query and of key
        self.layer_idx, self.options = layer_idx, options
        self.num_heads, self.num_kv_heads = heads
        self.head_dim = self.qkv.columns // (self.num_heads + 2 * self.num_kv_heads)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Sequence[Tensor], **kwargs: Any
    ) -> tuple[Tensor, None]:
        heads = self.qkv(hidden_states).view(-1, self.num_heads + 2 * self.num_kv_heads, self.head_dim)
        rotated, value = heads.split_with_sizes((self.num_heads + self.num_kv_heads, self.num_kv_heads), 1)
        if self.norms:
            parts = rotated.tensor_split((self.num_heads,), dim=1)
            rotated = torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], dim=1)
        cos, sin = position_embeddings
        operators.rotate(rotated, cos, sin)
        query, key = rotated.split_with_sizes((self.num_heads, self.num_kv_heads), 1)
        attended = kwargs[STEP].attend(self.layer_idx, query, key, value, self.options)
        return self.output(attended.reshape(1, len(attended), -1)), None
