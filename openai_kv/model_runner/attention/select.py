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
from openai_kv.model_runner.attention.trial import Shape, hold_against_sdpa
from openai_kv.model_runner.loader import one_line

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "sdpa", "cpu", "triton", "varlen")
FOR_CUDA = ("varlen", "triton")  # the fastest first


def select_backend(
    name: str,
    device: torch.device,
    cache_dir: Path | None = None,
    progress: Callable[[str], None] = logger.info,
    *,
    batch_invariant: bool = False,
    block_size: int = 16,
) -> AttentionBackend:
    """`auto` takes the fastest that works on `device`: on the CPU the C++ operator, built if need be; on CUDA the first
    of FOR_CUDA that computes the same as `sdpa` there, in blocks of `block_size`.

    `cache_dir`: where it is kept, None for the user's cache folder; `progress` gets a line when there is work to do.
    `batch_invariant`: see CpuBackend, which is the only one that can.

    Where there is none `sdpa` does its work, and a warning says so. Raises ConfigError.
    """
    if name not in BACKENDS:
        raise ConfigError(f"attention_backend: {name!r} is none of {', '.join(BACKENDS)}")
    if name == "cpu" and device.type != "cpu":
        raise ConfigError(f"attention_backend: 'cpu' can't run on {device.type}")
    if batch_invariant and (name not in ("auto", "cpu") or device.type != "cpu"):
        raise ConfigError("batch_invariant: only attention backend cpu can do it")
    if name in FOR_CUDA:
        return _only(name, device, block_size)
    if name == "auto" and device.type == "cuda":
        return _first_for_cuda(device, block_size)
    if name == "sdpa" or device.type != "cpu":
        return SdpaBackend()
    try:
        return load_cpu_backend(cache_dir or _user_cache(), progress, batch_invariant=batch_invariant)
    except OperatorBuildError as error:
        if batch_invariant:
            raise ConfigError(f"batch_invariant: attention backend cpu is not available: {error}") from error
        logger.warning("attention backend cpu is not available, using sdpa: %s", error)
        return SdpaBackend()


def _only(name: str, device: torch.device, block_size: int) -> AttentionBackend:
    try:
        return _tried(name, device, block_size)
    except Exception as error:  # drivers, compilers and kernels raise whatever they like
        raise ConfigError(f"attention_backend: {name!r} can't run on {device}: {one_line(error)}") from error


def _first_for_cuda(device: torch.device, block_size: int) -> AttentionBackend:
    for name in FOR_CUDA:
        try:
            return _tried(name, device, block_size)
        except Exception as error:
            logger.info("attention backend %s is not available: %s", name, one_line(error))
    logger.warning("attention backends %s are not available, using sdpa", " and ".join(FOR_CUDA))
    return SdpaBackend()


def _tried(name: str, device: torch.device, block_size: int) -> AttentionBackend:
    """Raises whatever shows that it doesn't work here."""
    from openai_kv.model_runner.attention.triton import TritonBackend  # noqa: PLC0415  (comes with torch for CUDA)
    from openai_kv.model_runner.attention.varlen import load_varlen_backend  # noqa: PLC0415

    backend: AttentionBackend = TritonBackend.on(device)
    if name == "varlen":
        backend = load_varlen_backend(rest=backend)
    hold_against_sdpa(backend, device, Shape(block_size))
    return backend


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openai-kv" / "operators"
