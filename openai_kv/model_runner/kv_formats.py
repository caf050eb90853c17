"""KV formats: how the numbers of K and V lie in the pool."""

from dataclasses import dataclass

import torch

from openai_kv.errors import ConfigError
from openai_kv.model_runner.dtypes import DTYPES, name_of

SCALE_DTYPE = torch.bfloat16  # the range of float32: no row is too large or too small for its scale


@dataclass(frozen=True, slots=True)
class Element:
    """How a row lies in the pool, the numbers of one token and head: `packed` of them in each of `dtype`, and so many
    `scales` beside them; `channel_scales`: beside each channel of a block."""

    dtype: torch.dtype
    packed: int = 1
    scales: int = 0
    channel_scales: int = 0

    def block_bytes(self, dim: int, block_size: int) -> int:
        """Of one head."""
        row = dim // self.packed * self.dtype.itemsize + self.scales * SCALE_DTYPE.itemsize
        return block_size * row + self.channel_scales * dim * SCALE_DTYPE.itemsize

    def scales_shape(self, dim: int, block_size: int) -> tuple[int, int] | None:
        """Of one block and head; None: there are none."""
        if self.channel_scales:
            return self.channel_scales, dim
        return (block_size, self.scales) if self.scales else None


INT8 = Element(torch.int8, scales=1)
INT4 = Element(torch.uint8, packed=2, scales=4)  # each half of a row has a step and a lowest value
INT4_CHANNELS = Element(torch.uint8, packed=2, channel_scales=2)


@dataclass(frozen=True, slots=True)
class KVFormat:
    name: str
    key: Element
    value: Element

    @property
    def coded(self) -> bool:
        return not self.key.dtype.is_floating_point

    @property
    def opens(self) -> bool:
        """Keys are rounded by the block, when it is full."""
        return self.key.channel_scales > 0


FORMATS = {name: KVFormat(name, Element(dtype), Element(dtype)) for name, dtype in DTYPES.items()} | {
    "int8": KVFormat("int8", INT8, INT8),
    "int8-int4": KVFormat("int8-int4", INT8, INT4),
    "int4-int8": KVFormat("int4-int8", INT4_CHANNELS, INT8),
    "int4": KVFormat("int4", INT4_CHANNELS, INT4),
}


def kv_format(name: str, weights: torch.dtype) -> KVFormat:
    """`auto`: that of the weights. Raises ConfigError for a format that isn't there."""
    if name == "auto":
        return FORMATS[name_of(weights)]
    if name not in FORMATS:
        raise ConfigError(f"kv_cache_dtype: {name!r} is none of auto, {', '.join(FORMATS)}")
    return FORMATS[name]
