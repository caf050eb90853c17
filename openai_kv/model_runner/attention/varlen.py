"""FlashAttention 3 or 4 over the block tables, by torch's varlen_attn, where one of them is installed."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import activate_flash_attention_impl, current_flash_attention_impl, list_flash_attention_impls
from torch.nn.attention.varlen import varlen_attn

from openai_kv.model_runner.attention.backend import AttentionBackend, AttentionOptions, LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.triton import write

MAX_HEAD_DIM = 256


class VarlenBackend:
    """Hands `rest` what FlashAttention doesn't do here: soft-caps, sinks, attention mass, float32, a pool of another
    type, odd head sizes. `attend` is torch's varlen_attn."""

    name = "varlen"
    replayable = True

    def __init__(self, attend: Callable[..., Any], rest: AttentionBackend) -> None:
        self._attend = attend
        self._rest = rest

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layer: LayerCache,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        mass: Tensor | None,
    ) -> Tensor:
        if mass is not None or not _takes(query, layer, options):
            return self._rest.forward(query, key, value, layer, metadata, options, mass)
        write(layer, key, value, metadata.slot_mapping)
        output: Tensor = self._attend(
            query,
            layer.key.transpose(1, 2),
            layer.value.transpose(1, 2),
            metadata.query_starts,
            None,
            max(metadata.query_lens),
            max(metadata.contexts),
            scale=options.scale,
            window_size=_window_size(options),
            enable_gqa=True,
            seqused_k=metadata.context_lens,
            block_table=metadata.block_tables,
        )
        return output


def load_varlen_backend(rest: AttentionBackend) -> VarlenBackend:
    """Raises RuntimeError where neither is installed for this GPU; torch's own FlashAttention 2 takes no tables."""
    if current_flash_attention_impl() is None:
        _activate()
    return VarlenBackend(varlen_attn, rest)


def _activate() -> None:
    reasons = []
    for name in list_flash_attention_impls():
        try:
            activate_flash_attention_impl(name)
        except Exception as error:  # the module is not there, or not for this GPU, or doesn't fit this torch
            reasons.append(f"{name}: {error}")
        else:
            return
    raise RuntimeError(f"no FlashAttention with block tables ({'; '.join(reasons)})")


def _takes(query: Tensor, layer: LayerCache, options: AttentionOptions) -> bool:
    dim = query.shape[-1]
    plain = options.softcap is None and options.sinks is None
    fits = layer.value.shape[-1] == dim and dim % 8 == 0 and dim <= MAX_HEAD_DIM
    return plain and fits and query.dtype == layer.key.dtype and query.dtype in (torch.bfloat16, torch.float16)


def _window_size(options: AttentionOptions) -> tuple[int, int]:
    """How many keys before and after its own a row sees; -1: all of them."""
    return (-1 if options.sliding_window is None else options.sliding_window - 1), 0
