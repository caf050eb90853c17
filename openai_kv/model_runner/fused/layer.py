"""FusedLayer: a decoder layer that is one operator where all of its parts are ours."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.attention.cpu import CpuBackend, Pages
from openai_kv.model_runner.attention.grouped import GroupedStep
from openai_kv.model_runner.attention.interface import STEP, AttentionStep, PagedStep
from openai_kv.model_runner.fused.linear import PackedLinear, QuantizedLinear
from openai_kv.model_runner.fused.modules import FusedAttention, FusedMLP, FusedNorm

PLAIN = ("input_layernorm", "post_attention_layernorm")
AROUND = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


class FusedLayer(nn.Module):
    """x + attention(norm(x)), then the same with the MLP; with four norms what is added is normed, too (Gemma).

    The parts keep their names, and are called one by one where `join` found one that is not ours, or a step that
    wants to see what is handed to attention.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.norm_names = norm_names(layer)
        for name in (*self.norm_names, "self_attn", "mlp"):
            setattr(self, name, getattr(layer, name))
        self.operator: Any = None
        self.index = 0

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None, **kwargs: Any) -> Tensor:
        if self.operator is not None:
            pages = pages_of(kwargs[STEP], self.index)
            if pages is not None:
                joined: Tensor = self.operator.forward(hidden_states, *position_embeddings, *pages)
                return joined
        return self._in_parts(hidden_states, position_embeddings=position_embeddings, **kwargs)

    def _in_parts(self, states: Tensor, **kwargs: Any) -> Tensor:
        norms = [getattr(self, name) for name in self.norm_names]
        after = norms[1::2] if len(norms) == len(AROUND) else [nn.Identity()] * 2
        before = norms[::2] if len(norms) == len(AROUND) else norms
        states = states + after[0](self.self_attn(hidden_states=before[0](states), **kwargs)[0])
        added: Tensor = after[1](self.mlp(before[1](states)))
        return states + added

    def join(self) -> None:
        """Make one operator of the parts as they are now, if they are all ours."""
        norms = [getattr(self, name) for name in self.norm_names]
        self.operator = _operator(norms, self.self_attn, self.mlp)
        self.index = getattr(self.self_attn, "layer_idx", 0)


def join_layers(model: nn.Module) -> None:
    """To be called whenever parts were exchanged."""
    for module in model.modules():
        if isinstance(module, FusedLayer):
            module.join()


def norm_names(layer: nn.Module) -> tuple[str, ...]:
    """() if it has other norms."""
    found = {name for name, _ in layer.named_children() if name in AROUND}
    return next((names for names in (PLAIN, AROUND) if found == set(names)), ())


def pages_of(step: AttentionStep, layer: int) -> Pages | None:
    """Where the rows of a step lie; None if it does not attend in the C++ operator, or keys have to be rounded after."""
    if isinstance(step, GroupedStep):
        step, layer = step.part(layer)
    if not isinstance(step, PagedStep) or not isinstance(step.backend, CpuBackend) or step.metadata.open is not None:
        return None
    return step.backend.pages(step.pool.layers[layer], step.metadata, step.mass)


def _operator(norms: Sequence[nn.Module], attention: nn.Module, mlp: nn.Module) -> Any:
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, FusedMLP):
        return None
    if not all(isinstance(norm, FusedNorm) for norm in (*norms, *attention.norms)):
        return None
    return _classes().DecoderLayer(
        [_norm(norm) for norm in norms],
        [_norm(norm) for norm in attention.norms],
        *(_matrix(linear) for linear in (attention.qkv, attention.output, mlp.gate_up, mlp.down)),
        _heads(attention.num_heads, attention.num_kv_heads, attention.options),
        mlp.activation,
    )


def _classes() -> Any:
    return torch.classes.openai_kv


def _norm(norm: Any) -> Any:
    return _classes().RowNorm(norm.weight, norm.epsilon, norm.rounds)


def _matrix(linear: PackedLinear | QuantizedLinear) -> Any:
    bits, rows = (linear.bits, 0) if isinstance(linear, QuantizedLinear) else (16, linear.brgemm_rows)
    return _classes().Matrix(linear.packed, linear.bias, linear.columns, bits, rows)


def _heads(queries: int, keys: int, options: AttentionOptions) -> Any:
    window, softcap = options.sliding_window or 0, options.softcap or 0.0
    sinks = None if options.sinks is None else options.sinks.float()
    return _classes().Heads(queries, keys, options.scale, window, softcap, sinks)
