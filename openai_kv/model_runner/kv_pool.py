"""The KV pool: every block's K and V, allocated once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from openai_kv.model_runner.attention.backend import LayerCache
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


def token_bytes(shapes: Sequence[LayerShape], dtype: torch.dtype) -> int:
    """Bytes of K and V of one token over all layers."""
    return sum(shape.num_elements for shape in shapes) * dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class KVPool:
    """Per layer K and V `(num_blocks, n_kv_heads, block_size, head_dim)`; block ids index the first dimension.

    There may be blocks beyond `num_blocks`, which the cache doesn't know of.
    """

    layers: tuple[LayerCache, ...]
    num_blocks: int
    block_size: int

    @classmethod
    def allocate(
        cls,
        shapes: Sequence[LayerShape],
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        spare_blocks: int = 0,
    ) -> "KVPool":
        """Zeros; on the CPU the system commits a block's memory when it is first written."""

        def zeros(shape: LayerShape, dim: int) -> Tensor:
            return _zeros((num_blocks + spare_blocks, shape.num_kv_heads, block_size, dim), dtype, torch.device(device))

        layers = tuple(LayerCache(zeros(shape, shape.key_dim), zeros(shape, shape.value_dim)) for shape in shapes)
        return cls(layers, num_blocks, block_size)

    @property
    def dtype(self) -> torch.dtype:
        return self.layers[0].key.dtype

    @property
    def nbytes(self) -> int:
        return sum(layer.key.nbytes + layer.value.nbytes for layer in self.layers)

    @property
    def block_bytes(self) -> int:
        return sum(layer.key[0].nbytes + layer.value[0].nbytes for layer in self.layers)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Do all copies as if every source were read before any target is written.

        Whole blocks are copied: what lies behind `num_tokens` is never read before the target's owner wrote it, and
        one indexed copy per tensor is cheaper than many ragged ones.
        """
        if not copies:
            return
        device = self.layers[0].key.device
        sources = to_device([copy.source for copy in copies], torch.int64, device)
        targets = to_device([copy.target for copy in copies], torch.int64, device)
        for layer in self.layers:
            for blocks in (layer.key, layer.value):
                blocks[targets] = blocks[sources]

    def read_blocks(self, block_ids: Sequence[int]) -> list[bytes]:
        """Each block's K and V as they are stored, layer after layer, `block_bytes` each."""
        if not block_ids:
            return []
        ids = torch.tensor(block_ids, device=self.layers[0].key.device)
        parts = [part[ids].flatten(1).view(torch.uint8) for part in self._parts()]
        return [row.tobytes() for row in torch.cat(parts, dim=1).cpu().numpy()]

    def write_blocks(self, block_ids: Sequence[int], payloads: Sequence[bytes | memoryview]) -> None:
        """Put back what `read_blocks` of a pool of the same shape has read."""
        if not block_ids:
            return
        rows = torch.empty(len(payloads), self.block_bytes, dtype=torch.uint8, pin_memory=self._on_cuda)
        for row, payload in zip(rows.numpy(), payloads, strict=True):
            row[:] = np.frombuffer(payload, np.uint8)
        device = self.layers[0].key.device
        ids, begin, stored = torch.tensor(block_ids, device=device), 0, rows.to(device)
        for part in self._parts():
            size = part[0].nbytes
            part[ids] = stored[:, begin : begin + size].contiguous().view(part.dtype).view(-1, *part.shape[1:])
            begin += size

    def _parts(self) -> Iterator[Tensor]:
        """[num_blocks, ...] each."""
        for layer in self.layers:
            yield layer.key
            yield layer.value

    @property
    def _on_cuda(self) -> bool:
        return self.layers[0].key.is_cuda

    def to_dynamic_cache(self, block_ids: Sequence[int], num_tokens: int) -> DynamicCache:
        """The first `num_tokens` tokens of a block table as a cache of batch size 1 for plain transformers code.

        Every layer is a full-length one, also where the model has a sliding window. The tensors are copies.
        """
        cache = DynamicCache()
        ids = torch.tensor(block_ids, device=self.layers[0].key.device)
        for index, layer in enumerate(self.layers):
            cache.update(_gather(layer.key, ids, num_tokens), _gather(layer.value, ids, num_tokens), index)
        return cache


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """numpy's zeros come untouched from the system, torch's are written: a second a GiB, and all of it resident."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), dtype=np.uint8)).view(dtype)


def _gather(blocks: Tensor, ids: Tensor, num_tokens: int) -> Tensor:
    """[num_blocks, heads, block_size, dim] -> [1, heads, num_tokens, dim]"""
    return blocks[ids].transpose(0, 1).flatten(1, 2)[None, :, :num_tokens].contiguous()
