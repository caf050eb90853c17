"""What can stand in for a module, judged by what the module consists of."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import gelu, silu

from openai_kv.model_runner.fused import operators
from openai_kv.model_runner.fused.layer import FusedLayer, norm_names
from openai_kv.model_runner.fused.linear import DTYPES, PackedLinear, is_linear
from openai_kv.model_runner.fused.modules import FusedAttention, FusedMLP, FusedNorm
from openai_kv.model_runner.fused.observe import AttentionCall

# Makes what stands in for a module, or for a copy of it in another type.
Build = Callable[[Any], nn.Module]
# Ways to stand in for a module that has the structure for it; which of them compute the same is then tried out.
Fusion = Callable[[nn.Module, Mapping[int, AttentionCall]], Iterator[Build]]


def layers(module: nn.Module, calls: Mapping[int, AttentionCall]) -> Iterator[Build]:
    """What has norms where Llama or Gemma have them, around an attention and an MLP that are of interest themselves."""
    attention, mlp = (module._modules.get(name) for name in ("self_attn", "mlp"))
    if attention is None or mlp is None or not norm_names(module):
        return
    if any(attentions(attention, calls)) and any(mlps(mlp, calls)):
        yield FusedLayer


def norms(module: nn.Module, _: Mapping[int, AttentionCall]) -> Iterator[Build]:
    """RMSNorm in the ways of Llama, of OLMo and of Gemma."""
    weight = module._parameters.get("weight")
    if weight is not None and weight.dim() == 1 and "RMSNorm" in type(module).__name__:
        for plus_one, rounds in ((False, True), (False, False), (True, False)):
            yield partial(FusedNorm, plus_one=plus_one, rounds=rounds)


def attentions(module: nn.Module, calls: Mapping[int, AttentionCall]) -> Iterator[Build]:
    inputs = _linears(module, ("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
    output = _linears(module, ("o_proj",), ("dense",), ("out_proj",))
    call = calls.get(getattr(module, "layer_idx", -1))
    if inputs and output and call is not None:
        yield partial(_attention, inputs, output[0], call.options, call.heads)


def _attention(inputs: Sequence[str], output: str, options: Any, heads: tuple[int, int], module: Any) -> FusedAttention:
    norms = [getattr(module, name) for name in ("q_norm", "k_norm") if hasattr(module, name)]
    return FusedAttention(
        [getattr(module, name) for name in inputs],
        getattr(module, output),
        norms,
        layer_idx=module.layer_idx,
        options=options,
        heads=heads,
    )


def mlps(module: nn.Module, _: Mapping[int, AttentionCall]) -> Iterator[Build]:
    inputs, output = _linears(module, ("gate_proj", "up_proj"), ("gate_up_proj",)), _linears(module, ("down_proj",))
    activation = _activation(getattr(module, "act_fn", getattr(module, "activation_fn", None)))
    if inputs and output and activation is not None:
        yield partial(_mlp, inputs, output[0], activation)


def _mlp(inputs: Sequence[str], output: str, activation: int, module: Any) -> FusedMLP:
    return FusedMLP([getattr(module, name) for name in inputs], getattr(module, output), activation)


def linears(module: nn.Module, _: Mapping[int, AttentionCall]) -> Iterator[Build]:
    if is_linear(module):
        yield lambda layer: PackedLinear([layer])


def _linears(module: nn.Module, *choices: tuple[str, ...]) -> tuple[str, ...]:
    """The first of `choices` whose names are all linear layers of types we pack; () if there is none."""
    return next((names for names in choices if all(_is_ours(getattr(module, name, None)) for name in names)), ())


def _is_ours(module: Any) -> bool:
    return is_linear(module) and module.weight.dtype in DTYPES


def _activation(function: Callable[[torch.Tensor], torch.Tensor] | None) -> int | None:
    """Which of our activations a module's own is, by its values."""
    if function is None:
        return None
    x = torch.linspace(-8, 8, 101)
    known = {operators.SILU: silu(x), operators.GELU_TANH: gelu(x, approximate="tanh")}
    return next((number for number, values in known.items() if torch.allclose(function(x), values, atol=1e-6)), None)
