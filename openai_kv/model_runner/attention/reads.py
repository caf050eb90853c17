"""How many bytes of K and V attention has to read in a step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.kv_pool import LayerShape, token_bytes


@dataclass(frozen=True, slots=True)
class AttentionReads:
    """`token_bytes`: of K and V of one token in all layers that have the same window (None: they see everything)."""

    token_bytes: Mapping[int | None, int]

    @classmethod
    def of(cls, layers: Sequence[LayerShape], windows: Sequence[int | None], dtype: torch.dtype) -> "AttentionReads":
        sums: Counter[int | None] = Counter()
        for layer, window in zip(layers, windows, strict=True):
            sums[window] += token_bytes([layer], dtype)
        return cls(dict(sums))

    def in_step(self, metadata: AttentionMetadata) -> int:
        """What some row of the step sees, each token of a request once: a backend that pads or tiles reads more."""
        lengths = list(zip(metadata.query_lens, metadata.contexts, strict=True))
        return sum(
            size * sum(_num_visible(length, context, window) for length, context in lengths)
            for window, size in self.token_bytes.items()
        )


def _num_visible(length: int, context: int, window: int | None) -> int:
    """Of `context` tokens the last `length` of which are the rows; a row sees itself and `window - 1` before it."""
    return context if window is None else min(context, length + window - 1)
