"""One forward pass of a model, taking down how each of its modules is called."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.loader import CausalLM

NUM_TOKENS = 9
FIRST_POSITION = 3  # not 0, where a rotation changes nothing


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """What a module was called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def in_float32(self) -> "Call":
        return Call(_as_float(self.args), {name: _as_float(value) for name, value in self.kwargs.items()})


@dataclass(frozen=True, slots=True, eq=False)
class AttentionCall:
    """What a layer handed to attention."""

    tensors: tuple[Tensor, ...]  # query, key, value
    options: AttentionOptions

    @property
    def heads(self) -> tuple[int, int]:
        """Of query, and of key and value."""
        return self.tensors[0].shape[1], self.tensors[1].shape[1]


@dataclass(slots=True, eq=False)
class ObservedStep:
    """Plain causal attention that takes down, by layer, what it was last handed."""

    calls: dict[int, AttentionCall] = field(default_factory=dict)

    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        self.calls[index] = AttentionCall((query.clone(), key.clone(), value.clone()), options)
        query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
        attended = scaled_dot_product_attention(query, key, value, is_causal=True, scale=options.scale, enable_gqa=True)
        return attended.transpose(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """`calls`: by name of the module, of those called once; `step` is in them. `attention`: by layer."""

    calls: Mapping[str, Call]
    attention: Mapping[int, AttentionCall]
    step: ObservedStep


def observe(model: CausalLM) -> Observation:
    """Run a few tokens through layers and head."""
    step = ObservedStep()
    calls: dict[str, list[Call]] = {}
    hooks = [
        module.register_forward_pre_hook(partial(_note, calls.setdefault(name, [])), with_kwargs=True)
        for name, module in model.model.named_modules()
    ]
    try:
        model.logits(model.hidden_states(*trial_rows(model), step))
    finally:
        for hook in hooks:
            hook.remove()
    once = {name: found[0] for name, found in calls.items() if len(found) == 1}
    return Observation(once, dict(step.calls), step)


def trial_rows(model: CausalLM) -> tuple[Tensor, Tensor]:
    """Tokens and positions [1, T]."""
    device, vocab_size = model.model.device, int(model.text_config.vocab_size)
    token_ids = torch.arange(NUM_TOKENS, device=device)[None] * 37 % vocab_size
    return token_ids, torch.arange(FIRST_POSITION, FIRST_POSITION + NUM_TOKENS, device=device)[None]


def _note(calls: list[Call], _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    calls.append(Call(args, kwargs))


def _as_float(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    return tuple(_as_float(part) for part in value) if isinstance(value, tuple) else value
