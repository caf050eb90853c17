"""What every attention backend does."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from openai_kv.model_runner.attention.metadata import AttentionMetadata


@dataclass(frozen=True, slots=True, eq=False)
class LayerCache:
    """One layer's part of the pool: key and value `(num_blocks, n_kv_heads, block_size, head_dim)`, contiguous."""

    key: Tensor
    value: Tensor

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
