"""Loads a causal language model, its modules unchanged, with attention going through us."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from openai_kv.errors import ConfigError, ModelLoadError
from openai_kv.model_runner.attention.interface import IMPLEMENTATION, STEP, AttentionStep, register
from openai_kv.model_runner.dtypes import DTYPES
from openai_kv.model_runner.lm_head import LMHead
from openai_kv.model_runner.quiet import quiet


@dataclass(frozen=True, slots=True, eq=False)
class CausalLM:
    """A model in two halves: layers, and head."""

    model: PreTrainedModel
    decoder: nn.Module
    head: LMHead

    @classmethod
    def wrap(cls, model: PreTrainedModel) -> "CausalLM":
        """Raises ModelLoadError if layers and head can't be told apart."""
        decoder = model.get_decoder()
        if decoder is model:
            raise ModelLoadError(f"{type(model).__name__} has no decoder apart from its head")
        return cls(model, decoder, LMHead(model, decoder))

    def hidden_states(self, token_ids: Tensor, positions: Tensor, step: AttentionStep) -> Tensor:
        """token_ids and positions [1, T] of the packed rows of a step; returns the final hidden states [T, hidden]."""
        arguments: dict[str, Any] = {"input_ids": token_ids, "position_ids": positions, "use_cache": False, STEP: step}
        states: Tensor = self.decoder(**arguments).last_hidden_state
        return states[0]

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[n, hidden] -> [n, vocab_size]"""
        return self.head.logits(hidden_states)

    @property
    def name(self) -> str:
        return type(self.model).__name__

    @property
    def text_config(self) -> PreTrainedConfig:
        return self.model.config.get_text_config()

    @property
    def num_layers(self) -> int:
        return int(self.text_config.num_hidden_layers)

    @property
    def max_model_len(self) -> int | None:
        """The longest context that the configuration states, if it does: 0 and less, which some write, say nothing."""
        stated: int | None = getattr(self.text_config, "max_position_embeddings", None)
        return stated if stated and stated > 0 else None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        sources = (self.model.generation_config, self.text_config)
        return frozenset(token for source in sources for token in _as_ids(getattr(source, "eos_token_id", None)))


def _as_ids(given: int | Iterable[int] | None) -> Iterable[int]:
    if given is None:
        return ()
    return (given,) if isinstance(given, int) else given


def resolve_device(name: str) -> torch.device:
    """`auto`: CUDA, else MPS, else the CPU. Raises ConfigError for a device that isn't there."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: {name!r} is none of auto, cpu, cuda, cuda:N, mps") from None
    if not available.get(device.type):
        raise ConfigError(f"device: {name} is not available here")
    return device


def load_model(
    path: Path, *, dtype: str = "auto", device: torch.device | str = "cpu", trust_remote_code: bool = False
) -> CausalLM:
    """Read a transformers folder. `dtype` auto: the one it was saved in.

    Raises ModelLoadError, in one line, if transformers can't read the folder or doesn't know the model.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"dtype: {dtype!r} is none of auto, {', '.join(DTYPES)}")
    register()
    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(
                path,
                dtype=DTYPES.get(dtype, "auto"),
                device_map={"": device},
                attn_implementation=IMPLEMENTATION,
                trust_remote_code=trust_remote_code,
                local_files_only=True,
            )
    except Exception as error:  # transformers lets through whatever its parts raise
        raise ModelLoadError(f"can't load a model from {path}: {one_line(error)}") from error
    return CausalLM.wrap(model)


def one_line(error: BaseException) -> str:
    """The first line, and the next one if the first only announces it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    said = lines[:2] if lines[0].endswith(":") else lines[:1]
    return f"{type(error).__name__}: {' '.join(said)}"
