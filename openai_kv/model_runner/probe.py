"""Checks at load that our attention computes what the model's own would; refuses by name what it doesn't."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from openai_kv.errors import ConfigError, ModelLoadError
from openai_kv.model_runner.attention.backend import AttentionBackend, AttentionOptions
from openai_kv.model_runner.attention.interface import IMPLEMENTATION, PagedStep
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.kv_formats import kv_format
from openai_kv.model_runner.kv_pool import KVPool, LayerShape
from openai_kv.model_runner.loader import CausalLM, one_line
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import SamplingParams

WINDOW = 8
CHUNKS = (13, 1, 16)  # more than three windows; a prefill, a decode row, and a prefill on top of both
BLOCK_SIZE = 4
TOLERANCE = 1e-4  # of the largest logit, in float32; families that agree do so to about 1e-6
VOCAB_SIZE = 128
LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})


@dataclass(frozen=True, slots=True)
class ModelShapes:
    """What the KV pool, the hidden slots and the sampler are sized by; `windows`: each layer's, None for all."""

    layers: tuple[LayerShape, ...]
    windows: tuple[int | None, ...]
    hidden_size: int
    vocab_size: int


class _RecordingStep:
    """Attention that only takes down who calls it, and with what shapes."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerShape] = {}
        self.windows: dict[int, int | None] = {}

    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        self.windows[index] = options.sliding_window
        self.layers[index] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        return query.new_zeros(*query.shape[:2], value.shape[2])


def measure(model: CausalLM) -> ModelShapes:
    """Shapes from running one token through the model. Raises ModelLoadError if a layer never asks for attention, or
    there is none.

    Asking the layers rather than the configuration needs no knowledge of families, and shows that each one calls us.
    """
    if model.num_layers < 1:
        raise ModelLoadError(f"{model.name}: the configuration says {model.num_layers} layers")
    step = _RecordingStep()
    token = torch.zeros(1, 1, dtype=torch.int64, device=model.model.device)
    with refusing(model), torch.inference_mode():
        states = model.hidden_states(token, token, step)
        logits = model.logits(states)
    if sorted(step.layers) != list(range(model.num_layers)):
        silent = [str(index) for index in range(model.num_layers) if index not in step.layers]
        raise ModelLoadError(f"{model.name}: layers {', '.join(silent)} never call the attention interface")
    layers = tuple(step.layers[index] for index in range(model.num_layers))
    windows = tuple(step.windows[index] for index in range(model.num_layers))
    return ModelShapes(layers, windows, states.shape[-1], logits.shape[-1])


def check(model: CausalLM, backend: AttentionBackend) -> None:
    """Raise ModelLoadError if paged attention over chunks differs from the family's own eager forward.

    A small clone of the configuration with random weights in float32 is compared, not the model itself. That
    suffices: which arguments a layer passes on and which it keeps to itself (a window that is only in the mask, a
    bias) is a matter of the family's code and configuration, not of its weights. The clone keeps all of the
    configuration but for widths and counts that attention doesn't see, and has one layer of each kind. With the
    window shrunk to 8 a prompt of three windows takes milliseconds, and float32 tells a wrong mask from rounding.
    """
    _refuse_moving_frequencies(model)
    _refuse_unknown_layers(model)
    with refusing(model):
        difference = _difference(_clone(model.model), backend)
    if not difference < TOLERANCE:
        raise ModelLoadError(
            f"{model.name} computes something else with paged attention (off by {difference:.1e} of the "
            f"largest logit): probably a window or a bias that it doesn't hand to the attention function"
        )


@torch.inference_mode()
def check_invariant(model: CausalLM, backend: AttentionBackend) -> None:
    """Raise ConfigError if logits depend, in a single bit, on how a prompt is cut into steps."""
    total = sum(CHUNKS)
    token_ids = (torch.arange(total) * 37 % int(model.text_config.vocab_size)).tolist()
    expected, *others = (
        torch.cat(list(_paged_logits(model, backend, token_ids, chunks))) for chunks in (CHUNKS, (total,), (1,) * total)
    )
    if not all(torch.equal(expected, other) for other in others):
        raise ConfigError(f"batch_invariant: {model.name} has parts whose results depend on the other rows of a step")


@contextmanager
def refusing(model: CausalLM) -> Iterator[None]:
    """Whatever a family's code raises when it is driven in a way it doesn't expect: the model is refused by name."""
    try:
        yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise ModelLoadError(f"{model.name} can't be driven by paged attention: {one_line(error)}") from error


def _refuse_unknown_layers(model: CausalLM) -> None:
    """Kinds that keep more than K and V (compressed or recurrent states) may differ only after longer prompts."""
    unknown = sorted(set(getattr(model.text_config, "layer_types", None) or ()) - LAYER_TYPES)
    if unknown:
        raise ModelLoadError(f"{model.name}: layers of type {', '.join(unknown)} are not supported")


def _refuse_moving_frequencies(model: CausalLM) -> None:
    """Frequencies that depend on the longest position of a step would make one row depend on another."""
    for module in model.model.modules():
        kinds = getattr(module, "rope_type", ())
        for kind in kinds.values() if isinstance(kinds, dict) else (kinds,):
            if kind == "longrope" or "dynamic" in kind:
                raise ModelLoadError(f"{model.name}: rotary embeddings of type {kind} are not supported")


def _difference(clone: PreTrainedModel, backend: AttentionBackend) -> float:
    """Largest difference of logits between the two ways, as a fraction of the largest logit."""
    token_ids = torch.arange(sum(CHUNKS), device=clone.device) * 37 % VOCAB_SIZE
    clone.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = clone(input_ids=token_ids[None], use_cache=False).logits[0]
        clone.set_attn_implementation(IMPLEMENTATION)
        actual = torch.cat(list(_paged_logits(CausalLM.wrap(clone), backend, token_ids.tolist())))
    return float((actual - expected).abs().max() / expected.abs().max())


def _paged_logits(
    model: CausalLM, backend: AttentionBackend, token_ids: list[int], chunks: Sequence[int] = CHUNKS
) -> Iterator[Tensor]:
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    options: dict[str, Any] = {"block_size": BLOCK_SIZE, "device": model.model.device}
    pool = KVPool.allocate(
        measure(model).layers, num_blocks=num_blocks, kv_format=kv_format("auto", model.model.dtype), **options
    )
    table = range(num_blocks - 1, -1, -1)  # not in order, so that a table which is ignored shows
    computed = 0
    for length in chunks:
        batch = InputBatch.build(
            [_rows(token_ids[computed : computed + length], computed, table)], BLOCK_SIZE, model.model.device
        )
        step = PagedStep(backend, pool, batch.metadata)
        yield model.logits(model.hidden_states(batch.token_ids, batch.positions, step))
        computed += length


def _rows(token_ids: list[int], computed: int, table: range) -> ScheduledRequest:
    params = SamplingParams(max_tokens=1)
    return ScheduledRequest("probe", token_ids, computed, table, False, params, 0, (), ())


def _clone(model: PreTrainedModel) -> PreTrainedModel:
    config = copy.deepcopy(model.config)
    _shrink(config.get_text_config())
    config.__dict__.pop("quantization_config", None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clone: nn.Module = AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=IMPLEMENTATION
        )
    clone.to(model.device)
    clone.eval()
    return cast(PreTrainedModel, clone)


def _shrink(config: PreTrainedConfig) -> None:
    _keep_one_layer_of_each_kind(config)
    for name, setting in list(vars(config).items()):
        if not isinstance(setting, int) or isinstance(setting, bool) or setting == 0:
            continue
        if name in ("sliding_window", "attention_chunk_size"):
            setattr(config, name, WINDOW)
        elif name.endswith("intermediate_size"):
            setattr(config, name, 64)
        elif name.startswith("vocab_size"):
            setattr(config, name, VOCAB_SIZE)
        elif name.endswith("_token_id"):
            setattr(config, name, 0)
    # Large enough for attention to be far from uniform: a soft-cap or a scale that is lost has to show.
    config.initializer_range = 1.2 * config.hidden_size**-0.5


def _keep_one_layer_of_each_kind(config: PreTrainedConfig) -> None:
    """Kinds are told apart by every list of the configuration that has an entry per layer; at least two are kept."""
    total = config.num_hidden_layers
    lists = {
        name: entries for name, entries in vars(config).items() if isinstance(entries, list) and len(entries) == total
    }
    first_of_kind = {str([entries[index] for entries in lists.values()]): index for index in reversed(range(total))}
    kept = sorted({*first_of_kind.values(), 0, min(1, total - 1)})
    config.num_hidden_layers = len(kept)
    for name, entries in lists.items():
        setattr(config, name, [entries[index] for index in kept])
