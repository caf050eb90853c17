"""A step's requests as the tensors the model takes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.transfer import to_device
from openai_kv.outputs import ScheduledRequest


@dataclass(frozen=True, slots=True, eq=False)
class InputBatch:
    """T rows of R requests. `last_rows` [R] int64: the row of each request that may be sampled."""

    token_ids: Tensor  # [1, T] int64
    positions: Tensor  # [1, T] int64
    last_rows: Tensor
    metadata: AttentionMetadata

    @classmethod
    def build(cls, requests: Sequence[ScheduledRequest], block_size: int, device: torch.device) -> "InputBatch":
        """Every request must have rows."""

        def tensor(array: NDArray[np.integer], dtype: torch.dtype = torch.int64) -> Tensor:
            return to_device(array, dtype, device)

        lens = np.array([len(request.token_ids) for request in requests])
        computed = np.array([request.num_computed_tokens for request in requests])
        starts = np.concatenate(([0], np.cumsum(lens)))
        owners = np.repeat(np.arange(len(requests)), lens)
        positions = np.arange(starts[-1]) - starts[owners] + computed[owners]
        tables = _block_tables(requests, computed + lens, block_size)
        slots = tables[owners, positions // block_size] * block_size + positions % block_size
        token_ids = np.concatenate([np.asarray(request.token_ids, dtype=np.int64) for request in requests])
        metadata = AttentionMetadata(
            slot_mapping=tensor(slots),
            block_tables=tensor(tables, torch.int32),
            query_starts=tensor(starts, torch.int32),
            context_lens=tensor(computed + lens, torch.int32),
            query_lens=tuple(lens.tolist()),
            contexts=tuple((computed + lens).tolist()),
        )
        return cls(tensor(token_ids)[None], tensor(positions)[None], tensor(starts[1:] - 1), metadata)


def _block_tables(
    requests: Sequence[ScheduledRequest], contexts: NDArray[np.integer], block_size: int
) -> NDArray[np.int64]:
    """[R, max_blocks]: of each block table the part its context fills, padded with 0."""
    counts = -(-contexts // block_size)
    tables = np.zeros((len(requests), int(counts.max())), dtype=np.int64)
    for row, request, count in zip(tables, requests, counts, strict=True):
        row[:count] = request.block_ids[:count]
    return tables
