"""The sizes of a model from its configuration: it is built without memory for its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from openai_kv.errors import ModelLoadError
from openai_kv.model_runner.attention.interface import IMPLEMENTATION, register
from openai_kv.model_runner.dtypes import DTYPES, name_of
from openai_kv.model_runner.kv_pool import LayerShape, token_bytes
from openai_kv.model_runner.layer_groups import LayerGroups
from openai_kv.model_runner.loader import CausalLM, one_line
from openai_kv.model_runner.probe import ModelShapes, measure
from openai_kv.model_runner.quiet import quiet


@dataclass(frozen=True, slots=True)
class ModelOutline:
    """`layers`: K and V of one token in each; `token_bytes`: over all layers, by KV format.

    `num_window_layers` of them keep the last `window` tokens only; `window_token_bytes`: over those.
    """

    architecture: str
    dtype: str
    num_parameters: int
    weight_bytes: int
    max_model_len: int | None
    layers: tuple[LayerShape, ...]
    token_bytes: Mapping[str, int]
    window: int
    num_window_layers: int
    window_token_bytes: Mapping[str, int]


def read_outline(
    path: Path, *, dtype: str = "auto", trust_remote_code: bool = False, window_layout: str = "auto"
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
    return _outline(model, measure(CausalLM.wrap(model)), window_layout)


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


def _outline(model: PreTrainedModel, shapes: ModelShapes, window_layout: str) -> ModelOutline:
    """Tied weights count once, as they lie in memory once. The KV format of the weights' own type comes first."""
    dtype = name_of(model.dtype)
    weights = list(model.parameters())
    longest = CausalLM.wrap(model).max_model_len
    groups = LayerGroups.of(shapes.windows, longest, window_layout)
    windowed, formats = groups.in_window(shapes.layers), tuple(dict.fromkeys((dtype, *DTYPES)))
    return ModelOutline(
        architecture=type(model).__name__,
        dtype=dtype,
        num_parameters=sum(weight.numel() for weight in weights),
        weight_bytes=sum(tensor.nbytes for tensor in (*weights, *model.buffers())),
        max_model_len=longest,
        layers=shapes.layers,
        token_bytes={name: token_bytes(shapes.layers, DTYPES[name]) for name in formats},
        window=groups.window,
        num_window_layers=groups.num_windowed,
        window_token_bytes={name: token_bytes(windowed, DTYPES[name]) for name in formats},
    )
