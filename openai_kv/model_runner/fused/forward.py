"""FusedForward: a decoder's own forward without what only caches, masks and training need."""

import logging
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from openai_kv.model_runner.fused.layer import FusedLayer
from openai_kv.model_runner.fused.observe import ObservedStep, trial_rows
from openai_kv.model_runner.loader import CausalLM, one_line

logger = logging.getLogger(__name__)

PARTS = {"embed_tokens", "rotary_emb", "layers", "norm"}


class FusedForward:
    """Embedding, rotation, layers, norm: what a Llama's forward does for packed rows, in a tenth of the Python."""

    def __init__(self, decoder: nn.Module) -> None:
        self._decoder: Any = decoder

    def __call__(self, *, input_ids: Tensor, position_ids: Tensor, **kwargs: Any) -> BaseModelOutputWithPast:
        decoder = self._decoder
        states = decoder.embed_tokens(input_ids)
        rotation = decoder.rotary_emb(states, position_ids)
        for layer in decoder.layers:
            states = layer(states, position_embeddings=rotation, position_ids=position_ids, **kwargs)
        return BaseModelOutputWithPast(last_hidden_state=decoder.norm(states))


def fuse_forward(model: CausalLM) -> bool:
    """Exchange the decoder's forward if it consists of these parts, and returns the same numbers then."""
    decoder, rows = model.decoder, trial_rows(model)
    parts = dict(decoder.named_children())
    if parts.keys() != PARTS or not all(isinstance(layer, FusedLayer) for layer in parts["layers"].children()):
        return False
    expected = model.hidden_states(*rows, ObservedStep())
    decoder.forward = FusedForward(decoder)
    try:
        same = torch.equal(model.hidden_states(*rows, ObservedStep()), expected)
    except Exception as error:  # whatever a family's code raises that takes other arguments
        logger.debug("the forward of %s stays as it is: %s", type(decoder).__name__, one_line(error))
        same = False
    if same:
        last: Any = [*parts["layers"].children()][-1]
        last.is_last = True
    else:
        del decoder.forward
    return same
