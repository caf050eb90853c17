"""How much memory the KV pool takes, and giving back what is no longer used."""

import ctypes
import gc

import psutil
import torch

from openai_kv.cgroup import Cgroup
from openai_kv.errors import ConfigError

GIB = 2**30
DEFAULT_SHARE = 0.9


def kv_cache_bytes(wanted: int | float | None, device: torch.device, reserved: int = 0) -> int:
    """`wanted`: bytes (int) or a share (float) of the memory that is free now, but for `reserved` bytes.

    None: 1 GiB on the CPU, which shares its memory with everything else; 0.9 of what is free on an accelerator.
    """
    if isinstance(wanted, int):
        return wanted
    if wanted is None and device.type == "cpu":
        return GIB
    return int(max(0, _free_bytes(device) - reserved) * (DEFAULT_SHARE if wanted is None else wanted))


def check_fits(num_bytes: int, device: torch.device, reserved: int = 0) -> None:
    """Raises ConfigError for a pool larger than what is free but for `reserved` bytes.

    On the CPU the system hands out more than there is, and ends the process when the pool fills up.
    """
    free = _free_bytes(device)
    if num_bytes > free - reserved:
        raise ConfigError(
            f"a KV pool of {num_bytes / GIB:.1f} GiB does not fit: {free / GIB:.1f} GiB are free and a step takes "
            f"{reserved / GIB:.1f} GiB; lower --kv-cache-memory, --num-blocks or --max-num-batched-tokens"
        )


def return_freed() -> None:
    """Hand what was freed back to the system. glibc keeps it otherwise; elsewhere this does nothing."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    free = int(psutil.virtual_memory().available)
    limit = Cgroup().free_memory()
    return free if limit is None else min(free, limit)
