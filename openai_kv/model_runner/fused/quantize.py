"""Puts the weights of packed layers into fewer bits."""

import logging
from typing import cast

import torch

from openai_kv.errors import ConfigError
from openai_kv.model_runner.fused.layer import in_parts
from openai_kv.model_runner.fused.linear import PackedLinear, QuantizedLinear
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.quantization import weight_format

logger = logging.getLogger(__name__)


@torch.no_grad()
def quantize(model: CausalLM, quantization: str) -> CausalLM:
    """The layers that `optimize` packed, in int8 or int4, in place; use what is returned instead of `model`.

    An embedding that is tied to the head stays as it is. Raises ConfigError if nothing was packed.
    """
    names = [name for name, module in model.model.named_modules() if isinstance(module, PackedLinear)]
    if not names:
        raise ConfigError(f"quantization: {model.name} has no layers that can be {quantization} here")
    with in_parts(model.model):
        sizes = [_exchange(model, name, quantization) for name in names]
    before, after = (sum(column) / 1e6 for column in zip(*sizes, strict=True))
    what = "int8" if quantization == "int8" else f"{quantization}, the head int8"
    logger.info("weights in %s: %d matrices, %.1f MB instead of %.1f", what, len(names), after, before)
    return CausalLM.wrap(model.model)


def _exchange(model: CausalLM, name: str, quantization: str) -> tuple[int, int]:
    """Bytes of the layer's weights before and after."""
    layer = cast(PackedLinear, model.model.get_submodule(name))
    is_head = layer is model.model.get_output_embeddings()
    quantized = QuantizedLinear(layer, weight_format(quantization, is_head=is_head).bits)
    model.model.set_submodule(name, quantized)
    return layer.packed.nbytes, quantized.packed.nbytes
