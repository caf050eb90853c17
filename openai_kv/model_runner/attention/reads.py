"""How many bytes of K and V attention has to read in a step."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.kv_formats import KVFormat
from openai_kv.model_runner.kv_pool import LayerShape, block_bytes


@dataclass(frozen=True, slots=True)
class AttentionReads:
    """`block_bytes`: of K and V of one block in all layers that have the same window (None: they see everything)."""

    block_bytes: Mapping[int | None, int]
    block_size: int

    @classmethod
    def of(
        cls, layers: Sequence[LayerShape], windows: Sequence[int | None], kv_format: KVFormat, block_size: int
    ) -> "AttentionReads":
        sums: Counter[int | None] = Counter()
        for layer, window in zip(layers, windows, strict=True):
            sums[window] += block_bytes([layer], kv_format, block_size)
        return cls(dict(sums), block_size)

    def in_step(self, metadata: AttentionMetadata) -> int:
        """What some row of the step sees, each token of a request once: a backend that pads or tiles reads more."""
        lengths = list(zip(metadata.query_lens, metadata.contexts, strict=True))
        return sum(
            size * sum(_num_visible(length, context, window) for length, context in lengths) // self.block_size
            for window, size in self.block_bytes.items()
        )


def _num_visible(length: int, context: int, window: int | None) -> int:
    """Of `context` tokens the last `length` of which are the rows; a row sees itself and `window - 1` before it."""
    return context if window is None else min(context, length + window - 1)
