"""Chooses the attention backend."""

import importlib
import logging

import torch

from openai_kv.errors import ConfigError
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.sdpa import SdpaBackend

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "sdpa", "cpu")


def select_backend(name: str, device: torch.device) -> AttentionBackend:
    """`auto` takes the fastest that works on `device`; `cpu` where it can't be built falls back to `sdpa`."""
    if name not in BACKENDS:
        raise ConfigError(f"attention_backend: {name!r} is none of {', '.join(BACKENDS)}")
    if name == "cpu" and device.type != "cpu":
        raise ConfigError(f"attention_backend: 'cpu' can't run on {device.type}")
    if name == "sdpa" or device.type != "cpu":
        return SdpaBackend()
    return _cpu_or_sdpa()


def _cpu_or_sdpa() -> AttentionBackend:
    try:
        # Building its C++ operator may need a compiler; whoever chose another backend shouldn't need one.
        module = importlib.import_module("openai_kv.model_runner.attention.cpu")
        backend: AttentionBackend = module.CpuBackend()
    except (ImportError, OSError, RuntimeError) as error:
        logger.warning("attention backend cpu is not available, using sdpa: %s", str(error).splitlines()[0])
        return SdpaBackend()
    return backend
