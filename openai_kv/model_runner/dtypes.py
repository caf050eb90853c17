"""Element types by name: of the weights, and of the K and V in the pool."""

import torch

from openai_kv.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def kv_cache_dtype(name: str, weights: torch.dtype) -> torch.dtype:
    """`auto`: that of the weights. Raises ConfigError for a format that isn't there."""
    if name == "auto":
        return weights
    if name not in DTYPES:
        raise ConfigError(f"kv_cache_dtype: {name!r} is none of auto, {', '.join(DTYPES)}")
    return DTYPES[name]
