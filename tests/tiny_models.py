"""Tiny random models of the families we claim, in float32: small enough to run hundreds of tokens in a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 211
WINDOW = 24  # shorter than the prompts of the tests

# The range makes the random models decided: attention far from uniform, logits a good way apart.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_WINDOWED: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}

_CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen3": lambda: Qwen3Config(**_COMMON),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(**_COMMON, **_WINDOWED, attn_logit_softcapping=5.0, final_logit_softcapping=9.0),
    "gemma3": lambda: Gemma3TextConfig(**_COMMON, **_WINDOWED),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB_SIZE,
        n_embd=64,
        n_layer=2,
        n_head=4,
        n_positions=512,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
    ),
    "gpt_oss": lambda: GptOssConfig(
        **_COMMON,
        **_WINDOWED,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
}
FAMILIES = tuple(_CONFIGS)


def tiny_config(family: str) -> PreTrainedConfig:
    return _CONFIGS[family]()


def tiny_model(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The same weights at every call, eager attention."""
    return build(tiny_config(family), dtype)


def build(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    model.eval().to(dtype)
    return cast(PreTrainedModel, model)


def save_tiny_model(family: str, folder: Path) -> Path:
    """As a folder that `--model` takes; without a tokenizer."""
    tiny_model(family).save_pretrained(folder)
    return folder


def multi_head_config(family: str) -> PreTrainedConfig:
    """K and V of a token and layer are twice as many numbers as its hidden state."""
    config = tiny_config(family)
    config.num_key_value_heads = config.num_attention_heads
    return config


def save_multi_head_model(family: str, folder: Path) -> Path:
    build(multi_head_config(family)).save_pretrained(folder)
    return folder
