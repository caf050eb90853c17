"""Logits from hidden states, made exactly as the model's own forward makes them."""

import copy
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import MoeModelOutputWithPast


class _PassThrough(nn.Module):
    """Stands where the layers were: the given embeddings are the final hidden states."""

    def forward(self, *, inputs_embeds: Tensor, **_: Any) -> MoeModelOutputWithPast:
        return MoeModelOutputWithPast(last_hidden_state=inputs_embeds)


class LMHead:
    """The causal language model without its layers, sharing its weights.

    So soft-caps, scales and biases that a family applies in its own `forward` are applied here too.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = copy.copy(model)
        # copy.copy of a module shares the dict of children; replacing one must not reach the real model.
        self._model._modules = dict(model._modules)
        self._model._modules[model.base_model_prefix] = _PassThrough()

    def logits(self, hidden_states: Tensor) -> Tensor:
        """hidden_states [n, hidden_size] -> [n, vocab_size], in the model's dtype."""
        logits: Tensor = self._model(inputs_embeds=hidden_states[None], use_cache=False).logits
        return logits[0]
