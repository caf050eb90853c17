"""Cuts a step's rows into pieces of equal shape, each one call of attention for the `sdpa` backend."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from openai_kv.model_runner.attention.metadata import AttentionMetadata

MAX_MASK_ELEMENTS = 2**20  # bounds rows x keys of one piece, and with it what a long prompt needs for masks and scores


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """B requests with q rows each, and the blocks that hold the L keys they may see."""

    rows: Tensor  # [B * q] int64 into the packed rows
    block_ids: Tensor  # [B, L / block_size] int64
    visible: Tensor  # [B, q, L] bool
    unseen: tuple[Tensor, Tensor]  # (requests, keys) that no row sees: what is there may be anything, nan too
    weights: Tensor  # [B] float32: 1 / rows of the request in this step
    requests: Tensor  # [B] int64
    last_columns: Tensor  # [B] int64: which of block_ids holds the last row


@dataclass(frozen=True, slots=True)
class Span:
    """Rows `first .. first + length` of the packed step, at `position ..` of `request`."""

    request: int
    first: int
    length: int
    position: int

    def num_blocks(self, block_size: int, window: int | None) -> int:
        return -(-(self.position + self.length) // block_size) - self.first_block(block_size, window)

    def first_block(self, block_size: int, window: int | None) -> int:
        return 0 if window is None else max(0, self.position - window + 1) // block_size


def cut(metadata: AttentionMetadata, block_size: int, window: int | None) -> list[Piece]:
    """Single rows are padded together with those of about as many blocks, long runs are cut to bound their masks."""
    spans = list(_spans(metadata))
    singles = sorted((_bucket(span, block_size, window), span.request, span) for span in spans if span.length == 1)
    groups = [[entry[2] for entry in group] for _, group in groupby(singles, key=lambda entry: entry[0])]
    groups += [[part] for span in spans if span.length > 1 for part in _parts(span, window)]
    return [_piece(group, metadata, block_size, window) for group in groups]


def _spans(metadata: AttentionMetadata) -> Iterator[Span]:
    first = 0
    for request, (length, context) in enumerate(zip(metadata.query_lens, metadata.contexts, strict=True)):
        yield Span(request, first, length, context - length)
        first += length


def _bucket(span: Span, block_size: int, window: int | None) -> int:
    """Powers of two: padding at most doubles what is read."""
    return span.num_blocks(block_size, window).bit_length()


def _parts(span: Span, window: int | None) -> Iterator[Span]:
    """A part sees no later keys than its own rows, so cutting also saves the work above the diagonal."""
    end = span.position + span.length
    keys = end if window is None else min(end, window + span.length)
    size = max(1, MAX_MASK_ELEMENTS // keys)
    for offset in range(0, span.length, size):
        length = min(size, span.length - offset)
        yield Span(span.request, span.first + offset, length, span.position + offset)


def _piece(group: Sequence[Span], metadata: AttentionMetadata, block_size: int, window: int | None) -> Piece:
    device = metadata.block_tables.device

    def column(numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, device=device)[:, None]

    rows = column([span.first for span in group]) + torch.arange(group[0].length, device=device)
    starts = column([span.first_block(block_size, window) for span in group])
    num_blocks = max(span.num_blocks(block_size, window) for span in group)
    columns = starts + torch.arange(num_blocks, device=device)
    tables = metadata.block_tables[[span.request for span in group]].long()
    block_ids = tables.gather(1, columns.clamp(max=tables.shape[1] - 1))
    queries = column([span.position for span in group]) + torch.arange(group[0].length, device=device)
    keys = starts * block_size + torch.arange(num_blocks * block_size, device=device)
    counts = torch.tensor([metadata.query_lens[span.request] for span in group], device=device)
    visible = _visible(queries, keys, window)
    requests, unseen = torch.nonzero(~visible.any(1), as_tuple=True)
    owners = column([span.request for span in group])[:, 0]
    last = column([span.num_blocks(block_size, window) - 1 for span in group])[:, 0]
    return Piece(rows.flatten(), block_ids, visible, (requests, unseen), 1.0 / counts, owners, last)


def _visible(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """queries [B, q], keys [B, L]: positions; what a row may attend to, [B, q, L]."""
    distance = queries[:, :, None] - keys[:, None, :]
    return (distance >= 0) if window is None else (distance >= 0) & (distance < window)
