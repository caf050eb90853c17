"""How the Triton kernels divide a step among programs."""

from dataclasses import dataclass

from openai_kv.model_runner.attention.metadata import AttentionMetadata

KEYS_PER_SPLIT = 256  # fewer are not worth merging for
MAX_SPLITS = 64
TILE_BYTES = 16384  # of K or V that a program holds at a time


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a step is cut: `block_q` rows of `group` heads in `block_m` lanes, `block_n` keys at a time, `splits`."""

    num_tiles: int
    block_m: int
    block_q: int
    block_n: int
    splits: int

    @classmethod
    def of(cls, metadata: AttentionMetadata, group: int, kv_heads: int, row_bytes: int, programs: int) -> "Tiling":
        """`row_bytes` of a padded key or value; `programs`: as many keep the device busy. From host numbers only."""
        lanes = 16 if max(metadata.query_lens) == 1 or row_bytes > 512 else 64
        block_m = max(lanes, power_of_two(group))
        block_q = block_m // group
        num_tiles = sum(metadata.query_lens) // block_q + len(metadata.query_lens)
        wanted = min(MAX_SPLITS, programs // (num_tiles * kv_heads), max(metadata.contexts) // KEYS_PER_SPLIT)
        splits = 1 << max(0, wanted.bit_length() - 1)
        return cls(num_tiles, block_m, block_q, min(64, max(16, TILE_BYTES // row_bytes)), splits)


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`."""
    return 1 << (number - 1).bit_length()
