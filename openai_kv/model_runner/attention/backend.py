"""What every attention backend does."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from openai_kv.model_runner.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """One layer's part of the pool: key and value `(num_blocks, n_kv_heads, block_size, head_dim)`, contiguous.

    In int8 (of dtype int8) and int4 (uint8, two in each) they are codes, and have scales in bfloat16,
    `(num_blocks, n_kv_heads, block_size, 1 or 4)`; `codes.py` says what they mean.

    Keys in int4 have scales by channel, `(num_blocks, n_kv_heads, 2, head_dim)`, and lie in `open_keys`
    `(num_slots, n_kv_heads, block_size, head_dim)` until their block is full.
    """

    key: Tensor
    value: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None
    open_keys: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """What holds blocks; block ids index the first dimension of each."""
        return [t for t in (self.key, self.value, self.key_scales, self.value_scales) if t is not None]

    @property
    def block_size(self) -> int:
        return self.key.shape[2]


@dataclass(frozen=True, slots=True, eq=False)
class AttentionOptions:
    """How a layer attends.

    score = scale * (q . k), then softcap * tanh(score / softcap) if there is a soft-cap (Gemma 2). A row at position p
    sees the positions p - sliding_window + 1 .. p. `sinks` [n_heads] are logits that take part in the softmax and have
    no value (gpt-oss).
    """

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


class AttentionBackend(Protocol):
    """Causal attention of packed rows over the blocks of their requests.

    `replayable`: goes by the tensors of the metadata, and by its host numbers only as upper bounds; so a recorded call
    is right for other steps of as many rows.
    """

    name: str
    replayable: bool

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
        """Write K and V to the pool, return the attention output [T, n_heads, head_dim].

        query [T, n_heads, head_dim], key and value [T, n_kv_heads, head_dim], of one dtype; the three may be strided
        views. What is written and attended to is K and V rounded to the pool's dtype, whatever it is.
        Query head h reads K/V head h // (n_heads / n_kv_heads).

        mass [num_blocks] float32, if given: to the entry of every block the step reads, add the softmax weight that
        falls on its tokens, summed over heads and over the rows of each request, divided by that request's rows.
        Called once per layer, so it sums over layers too.
        """
        ...
