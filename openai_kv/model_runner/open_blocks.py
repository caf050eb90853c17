"""Blocks that are not full, where keys are rounded by the block: until then those lie in slots of their own."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from openai_kv.model_runner.attention.backend import LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata, OpenStep
from openai_kv.model_runner.codes import decode_channels, encode_channels
from openai_kv.outputs import BlockCopy


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a step that lie in one block, the `index`-th of their request: tokens `start .. end` of it."""

    request: int
    index: int
    block: int
    start: int
    end: int


def parts_of(metadata: AttentionMetadata, block_size: int) -> Iterator[Part]:
    tables = metadata.block_tables.tolist()
    for request, (length, context) in enumerate(zip(metadata.query_lens, metadata.contexts, strict=True)):
        for index in range((context - length) // block_size, -(-context // block_size)):
            first = index * block_size
            start, end = max(0, context - length - first), min(block_size, context - first)
            yield Part(request, index, tables[request][index], start, end)


@dataclass(frozen=True, slots=True)
class OpenSlots:
    """How many there are, and the type of the keys in them: that of the weights."""

    count: int
    dtype: torch.dtype

    @classmethod
    def for_steps(cls, num_seqs: int, num_rows: int, block_size: int, dtype: torch.dtype) -> "OpenSlots":
        """Enough for any step: a request has rows in full blocks and in two that are not, its first and its last."""
        return cls(2 * num_seqs + num_rows // block_size, dtype)

    def nbytes(self, block_elements: int) -> int:
        return self.count * block_elements * self.dtype.itemsize

    def allocate(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """shape: of a block."""
        return torch.zeros(self.count, *shape, dtype=self.dtype, device=device)


class OpenBlocks:
    """Gives blocks slots of `LayerCache.open_keys`, the least recently written one's when there is none left.

    A block is open from its first row until it is full; then its keys are rounded, once. One whose slot others need is
    rounded as it is, and opened again from that when it is written again: a second rounding, on the same kind of grid.
    """

    def __init__(self, layers: Sequence[LayerCache], num_slots: int) -> None:
        self._layers = layers
        self._free = list(range(num_slots))
        self._slots: OrderedDict[int, int] = OrderedDict()  # by block, least recently written first
        self._num_tokens: dict[int, int] = {}  # written, by block

    def cut(self, metadata: AttentionMetadata, block_size: int) -> AttentionMetadata:
        """The step with requests cut at block boundaries, and where their keys go.

        So what a row sees does not depend on how its prompt was cut: the blocks before its own as they were rounded, of
        its own what was written.
        """
        parts = list(parts_of(metadata, block_size))
        slots = [self._open(part) for part in parts]
        filled = {part.block: slot for part, slot in zip(parts, slots, strict=True) if part.end == block_size}
        self.forget(filled)
        return _cut(metadata, parts, block_size, _open_step(parts, slots, filled, block_size))

    def _open(self, part: Part) -> int:
        if part.start and part.block not in self._slots:
            self._reopen(part.block)
        return self._take(part.block, part.end)

    def _reopen(self, block: int) -> None:
        keys = [layer_keys(layer, [block]) for layer in self._layers]
        self._put(self._take(block, 0), keys)

    def _put(self, slot: int, keys: Sequence[Tensor]) -> None:
        """keys: of each layer [1, heads, block_size, dim]"""
        for layer, blocks in zip(self._layers, keys, strict=True):
            open_keys(layer)[slot] = blocks[0].to(open_keys(layer).dtype)

    def _take(self, block: int, num_tokens: int) -> int:
        """The block's slot, a new one if need be; it holds so many tokens when the step is over."""
        if block not in self._slots:
            if not self._free:
                self.close([next(iter(self._slots))])
            self._slots[block] = self._free.pop()
        self._slots.move_to_end(block)
        self._num_tokens[block] = num_tokens
        return self._slots[block]

    def keys(self, layer: LayerCache, block: int) -> Tensor:
        """[1, heads, block_size, dim], wherever they lie."""
        slot = self._slots.get(block)
        return layer_keys(layer, [block]) if slot is None else open_keys(layer)[[slot]]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Targets are open, as they will be written."""
        sources = [[self.keys(layer, copy.source).clone() for layer in self._layers] for copy in copies]
        for copy, keys in zip(copies, sources, strict=True):
            self._put(self._take(copy.target, copy.num_tokens), keys)

    def close(self, blocks: Iterable[int]) -> None:
        """Round those that are open as they are."""
        for block in [block for block in blocks if block in self._slots]:
            slot, count = self._slots[block], self._num_tokens[block]
            for layer in self._layers:
                keys = open_keys(layer)[[slot]].clone()
                keys[:, :, count:] = keys[:, :, :1]  # what was never written must not stretch the grid
                write_keys(layer, [block], keys)
            self.forget([block])

    def forget(self, blocks: Iterable[int]) -> None:
        """What they hold is no longer of use, or lies in the pool."""
        for block in blocks:
            slot = self._slots.pop(block, None)
            if slot is not None:
                self._free.insert(0, slot)
                del self._num_tokens[block]


def _open_step(parts: Sequence[Part], slots: Sequence[int], filled: Mapping[int, int], block_size: int) -> OpenStep:
    rows = [slot * block_size + np.arange(part.start, part.end) for part, slot in zip(parts, slots, strict=True)]
    return OpenStep(
        key_slots=torch.from_numpy(np.concatenate(rows)),
        own_slots=torch.tensor(slots, dtype=torch.int32),
        filled_blocks=torch.tensor(list(filled), dtype=torch.int64),
        filled_slots=torch.tensor(list(filled.values()), dtype=torch.int64),
    )


def _cut(metadata: AttentionMetadata, parts: Sequence[Part], block_size: int, open_step: OpenStep) -> AttentionMetadata:
    device = metadata.block_tables.device
    lengths = [part.end - part.start for part in parts]
    contexts = [part.index * block_size + part.end for part in parts]
    return AttentionMetadata(
        slot_mapping=metadata.slot_mapping,
        block_tables=metadata.block_tables[[part.request for part in parts]],
        query_starts=torch.tensor(list(accumulate(lengths, initial=0)), dtype=torch.int32, device=device),
        context_lens=torch.tensor(contexts, dtype=torch.int32, device=device),
        query_lens=tuple(lengths),
        contexts=tuple(contexts),
        open=open_step.to(device),
    )


def open_keys(layer: LayerCache) -> Tensor:
    assert layer.open_keys is not None
    return layer.open_keys


def layer_keys(layer: LayerCache, blocks: Sequence[int] | Tensor) -> Tensor:
    """Rounded ones [len(blocks), heads, block_size, dim], float32."""
    assert layer.key_scales is not None
    return decode_channels(layer.key[blocks], layer.key_scales[blocks])


def write_keys(layer: LayerCache, blocks: Sequence[int] | Tensor, keys: Tensor) -> None:
    """keys [len(blocks), heads, block_size, dim]"""
    assert layer.key_scales is not None
    layer.key[blocks], layer.key_scales[blocks] = encode_channels(keys)


def add_keys(layer: LayerCache, keys: Tensor, step: OpenStep) -> None:
    """keys [T, heads, dim] of a step go to their slots, and what is full to the pool."""
    slots, block_size = open_keys(layer), layer.block_size
    slots[step.key_slots // block_size, :, step.key_slots % block_size] = keys.to(slots.dtype)
    if len(step.filled_blocks):
        write_keys(layer, step.filled_blocks, slots[step.filled_slots])
