"""Paged attention for CUDA in Triton: prefill and decode rows in one launch, long contexts split (flash-decoding)."""

import torch
import triton.language as tl
from torch import Tensor

from openai_kv.model_runner.attention import triton_kernels as kernels
from openai_kv.model_runner.attention.backend import AttentionOptions, LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.sdpa import SdpaBackend
from openai_kv.model_runner.attention.tiling import Tiling, power_of_two

DOT_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


class TritonBackend:
    """Runs AttentionBackend.forward in Triton; nothing is read back from the device.

    Any block size and head size; sums in float32. Rows and pool of one half-precision type are multiplied in it, as
    FlashAttention does it, all others in float32; what a pool of integers stands for `sdpa` knows. `programs`: that
    many keep the device busy.
    """

    name = "triton"
    replayable = True

    def __init__(self, programs: int) -> None:
        self._programs = programs
        self._rest = SdpaBackend()

    @classmethod
    def on(cls, device: torch.device) -> "TritonBackend":
        """Two programs for each multiprocessor; in the interpreter it doesn't matter."""
        if device.type != "cuda":
            return cls(16)
        return cls(2 * torch.cuda.get_device_properties(device).multi_processor_count)

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
        if not layer.key.dtype.is_floating_point:
            return self._rest.forward(query, key, value, layer, metadata, options, mass)
        query = query if query.stride(-1) == 1 else query.contiguous()
        write(layer, key, value, metadata.slot_mapping)
        call = _Call(query, layer, metadata, options, 1 if mass is not None else self._programs)
        output, sums, maxima = call.attend()
        if mass is not None:
            call.weigh(mass, sums, maxima)
        return output


def write(layer: LayerCache, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """key and value [T, kv_heads, dim] go to the slots [T] of the layer's blocks."""
    key, value = (rows if rows.stride(-1) == 1 else rows.contiguous() for rows in (key, value))
    rows, kv_heads = key.shape[:2]
    strides = (key.stride(0), key.stride(1), value.stride(0), value.stride(1))
    key_dim, value_dim = key.shape[2], value.shape[2]
    pads = power_of_two(kv_heads), _pad(key_dim), _pad(value_dim)
    shape = (kv_heads, layer.block_size, key_dim, value_dim, *pads)
    kernels.write[(rows,)](layer.key, layer.value, key, value, slot_mapping, *strides, *shape)


class _Call:
    """The attention of one layer in one step; at most so many `programs` for it to be worth splitting contexts."""

    def __init__(
        self, query: Tensor, layer: LayerCache, metadata: AttentionMetadata, options: AttentionOptions, programs: int
    ) -> None:
        self.query, self.layer, self.metadata, self.options = query, layer, metadata, options
        self.kv_heads, self.value_dim = layer.key.shape[1], layer.value.shape[3]
        self.group = query.shape[1] // self.kv_heads
        self.dot = _dot_type(query, layer.key)
        widest = max(_pad(query.shape[2]), _pad(self.value_dim)) * self.dot.itemsize
        self.tiling = Tiling.of(metadata, self.group, self.kv_heads, widest, programs)

    def attend(self) -> tuple[Tensor, Tensor, Tensor]:
        """output [T, heads, value_dim], and sums and maxima [splits, T, heads] of the softmax."""
        rows, heads, splits = *self.query.shape[:2], self.tiling.splits
        output = self.query.new_empty(rows, heads, self.value_dim)
        parts = output if splits == 1 else output.new_empty((splits, *output.shape), dtype=torch.float32)
        sums, maxima = output.new_empty((2, splits, rows, heads), dtype=torch.float32)
        self._launch_attend(parts, sums, maxima)
        if splits > 1:
            dims = (self.value_dim, _pad(self.value_dim), splits)
            kernels.merge[(rows * heads,)](output, parts, sums, maxima, rows * heads, *dims, num_warps=1)
        return output, sums, maxima

    def _launch_attend(self, parts: Tensor, sums: Tensor, maxima: Tensor) -> None:
        tiling, metadata = self.tiling, self.metadata
        sinks = self.options.sinks
        kernels.attend[(tiling.num_tiles, self.kv_heads, tiling.splits)](
            parts,
            sums,
            maxima,
            self.query,
            self.layer.key,
            self.layer.value,
            metadata.block_tables,
            metadata.query_starts,
            metadata.context_lens,
            sums if sinks is None else sinks,
            len(metadata.query_lens),
            len(self.query),
            *self._scales(),
            *self._strides(),
            VALUE_DIM=self.value_dim,
            VALUE_PAD=_pad(self.value_dim),
            SPLITS=tiling.splits,
            HAS_SINKS=sinks is not None,
            **self._constants(),
        )

    def weigh(self, mass: Tensor, sums: Tensor, maxima: Tensor) -> None:
        """Add to mass [num_blocks] float32 what AttentionBackend.forward says."""
        metadata = self.metadata
        kernels.weigh[(self.tiling.num_tiles, self.kv_heads)](
            mass,
            sums,
            maxima,
            self.query,
            self.layer.key,
            metadata.block_tables,
            metadata.query_starts,
            metadata.context_lens,
            len(metadata.query_lens),
            *self._scales(),
            *self._strides(),
            **self._constants(),
        )

    def _scales(self) -> tuple[float, float]:
        return self.options.scale, self.options.softcap or 1.0

    def _strides(self) -> tuple[int, int, int]:
        return self.query.stride(0), self.query.stride(1), self.metadata.block_tables.stride(0)

    def _constants(self) -> dict[str, object]:
        return {
            "GROUP": self.group,
            "KV_HEADS": self.kv_heads,
            "BLOCK_SIZE": self.layer.block_size,
            "KEY_DIM": self.query.shape[2],
            "KEY_PAD": _pad(self.query.shape[2]),
            "BLOCK_M": self.tiling.block_m,
            "BLOCK_Q": self.tiling.block_q,
            "BLOCK_N": self.tiling.block_n,
            "DOT": DOT_TYPES[self.dot],
            "WINDOW": self.options.sliding_window or 0,
            "HAS_SOFTCAP": self.options.softcap is not None,
        }


def _dot_type(query: Tensor, pool: Tensor) -> torch.dtype:
    """Triton's interpreter, on the CPU, can't multiply bfloat16."""
    interpreted = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return torch.float32 if interpreted or query.dtype != pool.dtype else query.dtype


def _pad(dim: int) -> int:
    """Triton's vectors have powers of two elements, its matrix products at least 16."""
    return max(16, power_of_two(dim))
