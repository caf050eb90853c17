"""The KV pool: every block's K and V, allocated once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from openai_kv.errors import ConfigError
from openai_kv.model_runner.attention.backend import LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.codes import decode
from openai_kv.model_runner.kv_formats import SCALE_DTYPE, Element, KVFormat
from openai_kv.model_runner.open_blocks import OpenBlocks, OpenSlots
from openai_kv.model_runner.transfer import to_device
from openai_kv.outputs import BlockCopy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """K and V of one token in one layer; `value_dim` differs from `key_dim` in a few families."""

    num_kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def num_elements(self) -> int:
        return self.num_kv_heads * (self.key_dim + self.value_dim)


def block_bytes(shapes: Sequence[LayerShape], kv_format: KVFormat, block_size: int) -> int:
    """Bytes of K and V of one block over all layers, scales included."""
    kinds = [(shape, kv_format.key, shape.key_dim) for shape in shapes]
    kinds += [(shape, kv_format.value, shape.value_dim) for shape in shapes]
    return sum(shape.num_kv_heads * element.block_bytes(dim, block_size) for shape, element, dim in kinds)


@dataclass(frozen=True, slots=True, eq=False)
class KVPool:
    """Per layer K and V `(num_blocks, n_kv_heads, block_size, head_dim)`; block ids index the first dimension.

    There may be blocks beyond `num_blocks`, which the cache doesn't know of.

    In int8 and int4 every row has scales beside it, and is rounded once, when it is written: whatever moves blocks
    moves bytes. But for keys in int4, which are rounded by the block: `open` knows those that are not full.
    """

    kv_format: KVFormat
    layers: tuple[LayerCache, ...]
    num_blocks: int
    block_size: int
    open: OpenBlocks | None = None

    @classmethod
    def allocate(
        cls,
        shapes: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        kv_format: KVFormat,
        device: torch.device | str = "cpu",
        open_slots: OpenSlots | None = None,
        spare_blocks: int = 0,
    ) -> "KVPool":
        """Zeros; on the CPU the system commits a block's memory when it is first written.

        `open_slots`: for formats that open blocks. Raises ConfigError.
        """
        _check(shapes, kv_format)
        slots = open_slots if kv_format.opens else None

        def layer(shape: LayerShape) -> LayerCache:
            rows = (num_blocks + spare_blocks, shape.num_kv_heads, block_size)
            key, key_scales = _blocks(rows, shape.key_dim, kv_format.key, torch.device(device))
            value, value_scales = _blocks(rows, shape.value_dim, kv_format.value, torch.device(device))
            open_keys = None if slots is None else slots.allocate((*rows[1:], shape.key_dim), torch.device(device))
            return LayerCache(key, value, key_scales, value_scales, open_keys)

        layers = tuple(map(layer, shapes))
        opened = None if slots is None else OpenBlocks(layers, slots.count)
        return cls(kv_format, layers, num_blocks, block_size, opened)

    @property
    def tensors(self) -> list[Tensor]:
        """All that holds blocks; block ids index the first dimension of each."""
        return [tensor for layer in self.layers for tensor in layer.tensors]

    @property
    def nbytes(self) -> int:
        """Of blocks and open slots."""
        return sum(tensor.nbytes for tensor in self.tensors) + sum(
            layer.open_keys.nbytes for layer in self.layers if layer.open_keys is not None
        )

    @property
    def block_bytes(self) -> int:
        return sum(tensor[0].nbytes for tensor in self.tensors)

    def prepare(self, metadata: AttentionMetadata) -> AttentionMetadata:
        """A step's metadata as attention over this pool takes it; every step, before its layers run."""
        return metadata if self.open is None else self.open.cut(metadata, self.block_size)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Do all copies as if every source were read before any target is written.

        Whole blocks are copied: what lies behind `num_tokens` is never read before the target's owner wrote it, and
        one indexed copy per tensor is cheaper than many ragged ones.
        """
        if not copies or not self.layers:
            return
        device = self.layers[0].key.device
        sources = to_device([copy.source for copy in copies], torch.int64, device)
        targets = to_device([copy.target for copy in copies], torch.int64, device)
        if self.open is not None:
            self.open.copy(copies)
        for blocks in self.tensors:
            blocks[targets] = blocks[sources]

    def read_blocks(self, block_ids: Sequence[int]) -> list[bytes]:
        """Each block's codes and scales as they lie here, layer after layer, `block_bytes` each."""
        if not block_ids:
            return []
        if self.open is not None:
            self.open.close(block_ids)
        ids = torch.tensor(block_ids, device=self.layers[0].key.device)
        parts = [tensor[ids].flatten(1).view(torch.uint8) for tensor in self.tensors]
        return [row.tobytes() for row in torch.cat(parts, dim=1).cpu().numpy()]

    def write_blocks(self, block_ids: Sequence[int], payloads: Sequence[bytes | memoryview]) -> None:
        """Put back what `read_blocks` of a pool of the same shape and format has read."""
        if not block_ids:
            return
        if self.open is not None:
            self.open.forget(block_ids)
        device = self.layers[0].key.device
        rows = torch.empty(len(payloads), self.block_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
        for row, payload in zip(rows.numpy(), payloads, strict=True):
            row[:] = np.frombuffer(payload, np.uint8)
        ids, sizes = torch.tensor(block_ids, device=device), [tensor[0].nbytes for tensor in self.tensors]
        for tensor, part in zip(self.tensors, rows.to(device).split(sizes, 1), strict=True):
            tensor[ids] = part.contiguous().view(tensor.dtype).view(-1, *tensor.shape[1:])

    def to_dynamic_cache(self, block_ids: Sequence[int], num_tokens: int) -> DynamicCache:
        """The first `num_tokens` tokens of a block table as a cache of batch size 1 for plain transformers code.

        What is coded comes as float32. Every layer is a full-length one, also where the model has a sliding window.
        The tensors are copies.
        """
        cache = DynamicCache()
        ids = torch.tensor(block_ids, device=self.layers[0].key.device)
        for index, layer in enumerate(self.layers):
            keys, values = self._keys(layer, block_ids), _values(layer.value, layer.value_scales, ids)
            cache.update(_flat(keys, num_tokens), _flat(values, num_tokens), index)
        return cache

    def _keys(self, layer: LayerCache, block_ids: Sequence[int]) -> Tensor:
        """[len(block_ids), heads, block_size, dim]"""
        if self.open is None:
            return _values(layer.key, layer.key_scales, torch.tensor(block_ids, device=layer.key.device))
        return torch.cat([self.open.keys(layer, block).float() for block in block_ids])


def _check(shapes: Sequence[LayerShape], kv_format: KVFormat) -> None:
    key, value = kv_format.key.packed, kv_format.value.packed
    if any(shape.key_dim % key or shape.value_dim % value for shape in shapes):
        raise ConfigError(f"kv_cache_dtype: {kv_format.name} needs heads of an even size")


def _blocks(
    rows: tuple[int, int, int], dim: int, element: Element, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Of K or V the numbers, and their scales if they have any."""
    numbers = _zeros((*rows, dim // element.packed), element.dtype, device)
    beside = element.scales_shape(dim, rows[2])
    return numbers, _zeros((*rows[:2], *beside), SCALE_DTYPE, device) if beside else None


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """numpy's zeros come untouched from the system, torch's are written: a second a GiB, and all of it resident."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)).view(dtype)


def _values(blocks: Tensor, scales: Tensor | None, ids: Tensor) -> Tensor:
    return blocks[ids] if scales is None else decode(blocks[ids], scales[ids])


def _flat(blocks: Tensor, num_tokens: int) -> Tensor:
    """[n, heads, block_size, dim] -> [1, heads, num_tokens, dim]"""
    return blocks.transpose(0, 1).flatten(1, 2)[None, :, :num_tokens].contiguous()
