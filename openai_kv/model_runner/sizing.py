"""How many blocks the pool gets, and how long a sequence may become in it."""

import logging

import torch

from openai_kv.errors import ConfigError
from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.model_runner.memory import check_fits, kv_cache_bytes
from openai_kv.model_runner.pool_sizes import PoolShares, PoolSizes
from openai_kv.model_runner.settings import RunnerSettings

logger = logging.getLogger(__name__)


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
