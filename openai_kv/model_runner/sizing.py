"""How many blocks the pool gets, and how long a sequence may become in it."""

import logging
from collections.abc import Sequence

import torch

from openai_kv.errors import ConfigError
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.select import READ_CODES
from openai_kv.model_runner.kv_formats import KVFormat
from openai_kv.model_runner.kv_pool import KVPool, LayerShape, block_bytes
from openai_kv.model_runner.layer_groups import LayerGroups
from openai_kv.model_runner.memory import check_fits, kv_cache_bytes
from openai_kv.model_runner.open_blocks import OpenSlots
from openai_kv.model_runner.pool_sizes import PoolShares, PoolSizes
from openai_kv.model_runner.settings import RunnerSettings

RECOMMENDED_BLOCK_SIZE = 64  # where keys have scales by channel

logger = logging.getLogger(__name__)


def shares_of(
    settings: RunnerSettings,
    layers: Sequence[LayerShape],
    groups: LayerGroups,
    kv_format: KVFormat,
    open_slots: OpenSlots,
    longest: int | None,
) -> PoolShares:
    """`longest`: tokens of a sequence, None for any."""
    size, step_tokens = settings.block_size, settings.max_num_batched_tokens
    keys = sum(shape.num_kv_heads * shape.key_dim for shape in layers) * size
    return PoolShares(
        size,
        block_bytes(groups.full(layers), kv_format, size),
        block_bytes(groups.in_window(layers), kv_format, size),
        groups.window,
        settings.window_share,
        step_tokens if longest is None else min(step_tokens, longest),
        settings.max_pinned_fraction,
        open_slots.nbytes(keys) if kv_format.opens else 0,
    )


def open_slots_of(settings: RunnerSettings, dtype: torch.dtype) -> OpenSlots:
    return OpenSlots.for_steps(settings.max_num_seqs, settings.max_num_batched_tokens, settings.block_size, dtype)


def check_format(kv_format: KVFormat, settings: RunnerSettings, backend: AttentionBackend) -> None:
    """Raises ConfigError for what a format can't do, warns of what it wastes."""
    if kv_format.coded and backend.name not in READ_CODES:
        raise ConfigError(f"kv_cache_dtype: attention backend {backend.name} reads no {kv_format.name}; sdpa does")
    if not kv_format.opens:
        return
    name, size = kv_format.name, settings.block_size
    if settings.needs_attention:
        raise ConfigError(f"kv_cache_dtype: {name} does not go with an eviction policy that needs attention mass")
    if size < RECOMMENDED_BLOCK_SIZE:
        bits, better = (4 + 32 / tokens for tokens in (size, RECOMMENDED_BLOCK_SIZE))
        logger.warning(
            "kv_cache_dtype %s: a key takes %.1f bits in blocks of %d tokens, %.1f in blocks of %d (--block-size)",
            name,
            bits,
            size,
            better,
            RECOMMENDED_BLOCK_SIZE,
        )


def pool_sizes_of(settings: RunnerSettings, shares: PoolShares, device: torch.device, reserved: int) -> PoolSizes:
    """Of the pool; `reserved` bytes are left for what a step takes. Raises ConfigError."""
    if settings.num_blocks is not None:
        sizes = shares.sizes(settings.num_blocks)
    else:
        budget = kv_cache_bytes(settings.kv_cache_memory, device, reserved)
        sizes = shares.fitting(budget)
        if sizes.num_blocks == 0:
            raise ConfigError(f"kv_cache_memory: {budget} bytes hold not even one block")
    check_fits(shares.nbytes(sizes), device, reserved)
    return sizes


def max_model_len_of(limit: int | None, settings: RunnerSettings, pool: KVPool) -> int:
    """No longer than what can't be pinned of the pool: each accepted request fits alone. `limit`: the model's own.

    In a window group any request fits, see PoolShares.
    """
    wanted = settings.max_model_len
    unpinned = max(1, int(round((1 - settings.max_pinned_fraction) * pool.num_blocks, 6)))
    if wanted is None and limit is None:
        raise ConfigError("max_model_len: the model's configuration states no limit, so set one")
    effective = min(length for length in (wanted, limit, unpinned * pool.block_size) if length is not None)
    if effective < (wanted or limit or 0):
        logger.warning("max_model_len is %d, not %d: model and KV pool hold no more", effective, wanted or limit)
    return effective
