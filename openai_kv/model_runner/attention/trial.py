"""Holds an attention backend against `sdpa` on the device it is to run on, before a model relies on it."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from openai_kv.model_runner.attention.backend import AttentionBackend, AttentionOptions, LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.sdpa import SdpaBackend

HEADS, KV_HEADS = 6, 2
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of the largest output


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a trial step: per request how many rows and how much context. The last one is split by some backends."""

    block_size: int = 16
    head_dim: int = 64
    queries: tuple[int, ...] = (1, 19, 1)
    contexts: tuple[int, ...] = (1, 45, 600)


def hold_against_sdpa(backend: AttentionBackend, device: torch.device, shape: Shape) -> None:
    """Raises ArithmeticError if the two differ by more than rounding, for any option of a layer."""
    for dtype, tolerance in TOLERANCES.items():
        for options in options_of(shape.head_dim, device):
            difference = disagreement(backend, device, shape, dtype, options)
            if not difference < tolerance:
                raise ArithmeticError(f"{dtype}, {options}: off by {difference:.1e} of the largest output")


def disagreement(
    backend: AttentionBackend, device: torch.device, shape: Shape, dtype: torch.dtype, options: AttentionOptions
) -> float:
    """Largest difference from `sdpa` in output and written blocks, as a fraction of the largest."""
    ours, reference = (_run(each, device, shape, dtype, options) for each in (backend, SdpaBackend()))
    return max(float((our - its).abs().max() / its.abs().max()) for our, its in zip(ours, reference, strict=True))


def options_of(head_dim: int, device: torch.device) -> Iterator[AttentionOptions]:
    """A plain layer, one with a window, one with all else."""
    scale = head_dim**-0.5
    yield AttentionOptions(scale)
    yield AttentionOptions(scale, sliding_window=13)
    yield AttentionOptions(scale, softcap=5.0, sinks=torch.linspace(-1, 1, HEADS, device=device))


def _run(
    backend: AttentionBackend, device: torch.device, shape: Shape, dtype: torch.dtype, options: AttentionOptions
) -> tuple[Tensor, Tensor, Tensor]:
    """The same numbers at every call: output, and the blocks afterwards, in float32."""
    generator = torch.Generator().manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(device, dtype)

    metadata, num_blocks = _metadata(shape, device)
    pool = (num_blocks, KV_HEADS, shape.block_size, shape.head_dim)
    layer = LayerCache(random(*pool), random(*pool))
    rows = sum(shape.queries)
    query = random(rows, HEADS, shape.head_dim)
    key, value = (random(rows, KV_HEADS, shape.head_dim) for _ in range(2))
    output = backend.forward(query, key, value, layer, metadata, options, None)
    return output.float(), layer.key.float(), layer.value.float()


def _metadata(shape: Shape, device: torch.device) -> tuple[AttentionMetadata, int]:
    """Tables that count down, so that one which is ignored shows; and the number of blocks."""
    counts = [-(-context // shape.block_size) for context in shape.contexts]
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, count in enumerate(counts):
        tables[row, :count] = torch.arange(sum(counts[: row + 1]) - 1, sum(counts[:row]) - 1, -1)
    slots = []
    for table, query, context in zip(tables.long(), shape.queries, shape.contexts, strict=True):
        positions = torch.arange(context - query, context)
        slots.append(table[positions // shape.block_size] * shape.block_size + positions % shape.block_size)
    starts = torch.tensor([0, *shape.queries]).cumsum(0, dtype=torch.int32)
    contexts = torch.tensor(shape.contexts, dtype=torch.int32)
    metadata = AttentionMetadata(
        slot_mapping=torch.cat(slots).to(device),
        block_tables=tables.to(device),
        query_starts=starts.to(device),
        context_lens=contexts.to(device),
        query_lens=shape.queries,
        contexts=shape.contexts,
    )
    return metadata, sum(counts)
