"""Logits from hidden states, made exactly as the model's own forward makes them."""

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast


@dataclass
class _States(BaseModelOutputWithPast):
    """Final hidden states; everything else a family's decoder may return is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("_"):
            raise AttributeError(name)


def _pass_through(*_args: Any, inputs_embeds: Tensor, **_kwargs: Any) -> _States:
    """Stands in for the decoder's forward: the given embeddings are its final hidden states."""
    return _States(last_hidden_state=inputs_embeds)


class LMHead:
    """The causal language model without its layers, sharing its weights.

    So soft-caps, scales and biases that a family applies in its own `forward` are applied here too.
    """

    def __init__(self, model: PreTrainedModel, decoder: nn.Module) -> None:
        self._model = _shallow(model)
        name = next(name for name, module in model.named_modules() if module is decoder)
        _replace_forward(self._model, name.split("."))

    def logits(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [n, hidden_size] -> [n, vocab_size], in the model's dtype."""
        logits: Tensor = self._model(inputs_embeds=hidden_states[None], use_cache=False).logits
        return logits[0]


def _replace_forward(module: nn.Module, path: list[str]) -> None:
    """Give the descendant at `path` another forward, in copies of all modules on the way: the real model keeps its."""
    for name in path:
        module._modules[name] = module = _shallow(module.get_submodule(name))
    module.forward = _pass_through


def _shallow(module: nn.Module) -> Any:
    """copy.copy shares the dict of children as well; replacing one must not reach the original."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
