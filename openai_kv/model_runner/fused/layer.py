"""FusedLayer: a decoder layer that is one operator where all of its parts are ours."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.attention.cpu import CpuBackend
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

    self_attn: nn.Module
    mlp: nn.Module

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.norm_names = norm_names(layer)
        for name in (*self.norm_names, "self_attn", "mlp"):
            self.add_module(name, getattr(layer, name))
        self.operator: Any = None
        self.index = 0
        self.is_last = False  # nothing but the final norm sees what it returns

    def forward(self, hidden_states: Tensor, position_embeddings: Any = None, **kwargs: Any) -> Tensor:
        step, index = kwargs[STEP], self.index
        if isinstance(step, GroupedStep):
            step, index = step.part(index)
        if self.operator is None or not _attends_in_the_operator(step):
            return self._in_parts(hidden_states, position_embeddings=position_embeddings, **kwargs)
        return self._at_once(hidden_states, position_embeddings, step, index)

    def _at_once(self, states: Tensor, rotation: Sequence[Tensor], step: PagedStep, index: int) -> Tensor:
        layer, metadata, backend = step.pool.layers[index], step.metadata, cast(CpuBackend, step.backend)
        result: Tensor = self.operator(
            states,
            *rotation,
            layer.key,
            layer.value,
            layer.key_scales,
            layer.value_scales,
            metadata.slot_mapping,
            metadata.block_tables,
            metadata.query_starts,
            metadata.context_lens,
            step.mass,
            backend.batch_invariant,
            step.wanted if self.is_last else None,
        )
        return result

    def _in_parts(self, states: Tensor, **kwargs: Any) -> Tensor:
        before_attention, after_attention, before_mlp, after_mlp = self._four_norms()
        attended = self.self_attn(hidden_states=before_attention(states), **kwargs)[0]
        states = states + after_attention(attended)
        added: Tensor = after_mlp(self.mlp(before_mlp(states)))
        return states + added

    def _four_norms(self) -> Sequence[Callable[[Tensor], Tensor]]:
        norms = [getattr(self, name) for name in self.norm_names]
        return norms if len(norms) == len(AROUND) else [norms[0], _unchanged, norms[1], _unchanged]

    def join(self) -> None:
        """Make one operator of the parts as they are now, if they are all ours."""
        norms = [getattr(self, name) for name in self.norm_names]
        self.operator = _operator(norms, self.self_attn, self.mlp)
        self.index = int(getattr(self.self_attn, "layer_idx", 0))


def join_layers(model: nn.Module) -> None:
    """To be called whenever parts were exchanged."""
    for layer in _layers(model):
        layer.join()


@contextmanager
def in_parts(model: nn.Module) -> Iterator[None]:
    """Meanwhile no layer is one operator: parts that are exchanged are freed, and what they return can be seen."""
    for layer in _layers(model):
        layer.operator = None
    try:
        yield
    finally:
        join_layers(model)


def _layers(model: nn.Module) -> Iterator[FusedLayer]:
    return (module for module in model.modules() if isinstance(module, FusedLayer))


def norm_names(layer: nn.Module) -> tuple[str, ...]:
    """() if it has other norms."""
    found = {name for name, _ in layer.named_children() if name in AROUND}
    return next((names for names in (PLAIN, AROUND) if found == set(names)), ())


def _unchanged(x: Tensor) -> Tensor:
    return x


def _attends_in_the_operator(step: AttentionStep) -> bool:
    """And keys are written as they are, not rounded once their block is full."""
    return isinstance(step, PagedStep) and isinstance(step.backend, CpuBackend) and step.metadata.open is None


def _operator(norms: Sequence[nn.Module], attention: nn.Module, mlp: nn.Module) -> Any:
    if not isinstance(attention, FusedAttention) or not isinstance(mlp, FusedMLP):
        return None
    if not all(isinstance(norm, FusedNorm) for norm in (*norms, *attention.norms)):
        return None
    layer = _classes().DecoderLayer(
        [_norm(norm) for norm in norms],
        [_norm(norm) for norm in attention.norms],
        *(_matrix(linear) for linear in (attention.qkv, attention.output, mlp.gate_up, mlp.down)),
        _heads(attention.num_heads, attention.num_kv_heads, attention.options),
        mlp.activation,
    )
    return layer.forward


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
