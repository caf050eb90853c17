"""The function transformers calls for attention: hands a layer's rows to the step's backend."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from openai_kv.errors import ModelLoadError
from openai_kv.model_runner.attention.backend import AttentionBackend, AttentionOptions
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.kv_pool import KVPool

IMPLEMENTATION = "openai_kv"
# The model's forward passes unknown keyword arguments on to its attention function: so a step's state travels with
# the call, and nothing has to be attached to the model or kept in a global.
STEP = "openai_kv_step"

# What families pass along that doesn't change what a causal decoder computes when no cache object is used.
_HARMLESS = frozenset(
    {"position_ids", "use_cache", "cache", "past_key_values", "cache_position", "position_embeddings"}
)


class AttentionStep(Protocol):
    """The state of one forward pass."""

    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        """Layer `index`; query [T, n_heads, d], key and value [T, n_kv_heads, d]; returns [T, n_heads, d]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PagedStep:
    """Attention over the pool, for one step's rows.

    `wanted` [n] int64: the rows whose final hidden states are looked at, None: all. What stands in for others is
    anybody's guess.
    """

    backend: AttentionBackend
    pool: KVPool
    metadata: AttentionMetadata
    mass: Tensor | None = None
    wanted: Tensor | None = None

    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        layer = self.pool.layers[index]
        return self.backend.forward(query, key, value, layer, self.metadata, options, self.mass)


def register() -> None:
    """Make `attn_implementation="openai_kv"` known to transformers; idempotent.

    No mask function is registered: transformers then builds no mask at all, and doesn't look for packed sequences
    in `position_ids` either, which would cost a device synchronization per step.
    """
    AttentionInterface.register(IMPLEMENTATION, attention)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, n_heads, T, d], key and value [1, n_kv_heads, T, d].

    Raises ModelLoadError for an argument that we don't honour; the probe at load meets it first.
    """
    step: AttentionStep | None = kwargs.pop(STEP, None)
    layer = getattr(module, "layer_idx", None)
    if step is None or not isinstance(layer, int):
        raise ModelLoadError(f"{type(module).__name__} does not hand our arguments to the attention function")
    refused = _refused(module, attention_mask, dropout, is_causal, kwargs)
    if refused:
        raise ModelLoadError(f"{type(module).__name__} attends with {', '.join(refused)}, which is not supported")
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    options = AttentionOptions(scale, sliding_window or None, softcap, s_aux)
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return step.attend(layer, query, key, value, options)[None], None


def _refused(
    module: nn.Module, mask: Tensor | None, dropout: float, is_causal: bool | None, others: dict[str, Any]
) -> list[str]:
    """Names of arguments that would change the result and that we don't know."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    known = {"attention_mask": mask is not None, "dropout": dropout != 0.0, "is_causal=False": not causal}
    refused = [name for name, is_set in known.items() if is_set]
    return refused + [name for name, given in others.items() if name not in _HARMLESS and _is_set(given)]


def _is_set(given: object) -> bool:
    return isinstance(given, torch.Tensor) or (given is not None and given is not False)
