"""The sizes of a model from its configuration: it is built without memory for its weights."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from openai_kv.errors import ModelLoadError
from openai_kv.model_runner.attention.interface import IMPLEMENTATION, register
from openai_kv.model_runner.dtypes import DTYPES, name_of
from openai_kv.model_runner.fused.linear import is_linear, matrix_of
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.kv_pool import LayerShape, block_bytes
from openai_kv.model_runner.layer_groups import LayerGroups
from openai_kv.model_runner.loader import CausalLM, one_line
from openai_kv.model_runner.probe import measure
from openai_kv.model_runner.quantization import weight_format
from openai_kv.model_runner.quiet import quiet


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """`layers`: K and V of one token in each. `window_layers` keep the last `window` tokens only, `full_layers` all."""

    architecture: str
    dtype: str
    quantization: str
    num_parameters: int
    weight_bytes: int
    max_model_len: int | None
    layers: tuple[LayerShape, ...]
    full_layers: tuple[LayerShape, ...]
    window_layers: tuple[LayerShape, ...]
    window: int

    def block_bytes(self, kv_cache_dtype: str, block_size: int) -> int:
        """Of one block of a KV format, over all layers."""
        return block_bytes(self.layers, FORMATS[kv_cache_dtype], block_size)


def read_outline(
    path: Path,
    *,
    dtype: str = "auto",
    quantization: str = "none",
    trust_remote_code: bool = False,
    window_layout: str = "auto",
) -> ModelOutline:
    """Of the folder at `path`, of which only `config.json` is read. `dtype` auto: what the configuration states.

    `window_layout`: as for serve.

    The layers themselves are asked for their shapes, as when the model is served: on the meta device, where tensors
    have a shape and no memory. Raises ModelLoadError, in one line, for what transformers or we can't run.
    """
    register()
    try:
        with quiet():
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code, local_files_only=True)
            model = _empty_model(config, dtype, trust_remote_code)
    except Exception as error:  # transformers lets through whatever its parts raise
        raise ModelLoadError(f"can't read a model's configuration from {path}: {one_line(error)}") from error
    return _outline(model, quantization, window_layout)


def _empty_model(config: PreTrainedConfig, dtype: str, trust_remote_code: bool) -> PreTrainedModel:
    chosen = DTYPES.get(dtype) or config.get_text_config().dtype or config.dtype or torch.float32
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config,
            dtype=chosen,
            attn_implementation=IMPLEMENTATION,
            experts_implementation="batched_mm",  # the others ask which experts are chosen, or for bfloat16
            trust_remote_code=trust_remote_code,
        )
    model.eval()
    return model


def _outline(model: PreTrainedModel, quantization: str, window_layout: str) -> ModelOutline:
    shapes = measure(CausalLM.wrap(model))
    weights = list(model.parameters())
    longest = CausalLM.wrap(model).max_model_len
    groups = LayerGroups.of(shapes.windows, longest, window_layout)
    return ModelOutline(
        architecture=type(model).__name__,
        dtype=name_of(model.dtype),
        quantization=quantization,
        num_parameters=sum(weight.numel() for weight in weights),
        weight_bytes=_weight_bytes(model, quantization),
        max_model_len=longest,
        layers=shapes.layers,
        full_layers=tuple(groups.full(shapes.layers)),
        window_layers=tuple(groups.in_window(shapes.layers)),
        window=groups.window,
    )


def _weight_bytes(model: PreTrainedModel, quantization: str) -> int:
    """Tied weights count once, as they lie in memory once; but an embedding stays when its head is quantized."""
    kept = {id(tensor): tensor.nbytes for tensor in (*model.parameters(), *model.buffers())}
    if quantization == "none":
        return sum(kept.values())
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    quantized = 0
    for layer in filter(is_linear, model.modules()):
        is_head = layer is model.get_output_embeddings()
        quantized += weight_format(quantization, is_head=is_head).nbytes(*matrix_of(layer).shape)
        if id(layer.weight) not in embeddings:
            kept.pop(id(layer.weight), None)
    return sum(kept.values()) + quantized
