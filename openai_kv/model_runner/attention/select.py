"""Chooses the attention backend."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import torch

from openai_kv.errors import ConfigError, OperatorBuildError
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.cpu import load_cpu_backend
from openai_kv.model_runner.attention.sdpa import SdpaBackend

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "sdpa", "cpu")


def select_backend(
    name: str,
    device: torch.device,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] = logger.info,
    *,
    batch_invariant: bool = False,
) -> AttentionBackend:
    """`auto` takes the fastest that works on `device`: on the CPU the C++ operator, built if need be.

    `cache_dir`: where it is kept, None for the user's cache folder; `progress` gets a line when there is work to do.
    `batch_invariant`: see CpuBackend, which is the only one that can.

    Where that can't be built `sdpa` does its work, and a warning says so. Raises ConfigError.
    """
    if name not in BACKENDS:
        raise ConfigError(f"attention_backend: {name!r} is none of {', '.join(BACKENDS)}")
    if name == "cpu" and device.type != "cpu":
        raise ConfigError(f"attention_backend: 'cpu' can't run on {device.type}")
    if batch_invariant and (name == "sdpa" or device.type != "cpu"):
        raise ConfigError("batch_invariant: only attention backend cpu can do it")
    if name == "sdpa" or device.type != "cpu":
        return SdpaBackend()
    try:
        return load_cpu_backend(cache_dir or _user_cache(), progress, batch_invariant=batch_invariant)
    except OperatorBuildError as error:
        if batch_invariant:
            raise ConfigError(f"batch_invariant: attention backend cpu is not available: {error}") from error
        logger.warning("attention backend cpu is not available, using sdpa: %s", error)
        return SdpaBackend()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openai-kv" / "operators"
