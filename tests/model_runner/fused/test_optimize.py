import copy
import logging
from collections import Counter
from collections.abc import Iterator
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Phi3Config, PhiConfig, PreTrainedModel

from openai_kv.model_runner.fused.agreement import relative_difference
from openai_kv.model_runner.fused.linear import PackedEmbedding, PackedLinear
from openai_kv.model_runner.fused.modules import FusedAttention, FusedMLP, FusedNorm
from openai_kv.model_runner.fused.observe import ObservedStep
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.loader import CausalLM
from tests.model_runner.driver import paged
from tests.tiny_models import VOCAB_SIZE, build, tiny_config, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
KINDS = (FusedAttention, FusedMLP, FusedNorm, PackedLinear, PackedEmbedding)
PHI: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
PHI |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2, "pad_token_id": 2}

# How many of KINDS stand where the family's own modules were, two layers each.
EXPECTED = {
    "llama": (2, 2, 5, 1, 0),
    "qwen2": (2, 2, 5, 1, 0),
    "qwen3": (2, 2, 5, 1, 0),
    "mistral": (2, 2, 5, 1, 0),
    "gemma2": (2, 2, 9, 1, 1),
    "gemma3": (2, 2, 9, 1, 1),
    "gpt2": (0, 0, 0, 9, 1),
    "gpt_oss": (0, 0, 5, 9, 0),
    "phi": (2, 0, 0, 5, 0),
    "phi3": (2, 2, 5, 1, 0),
}


def make(family: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    configs = {"phi": PhiConfig, "phi3": Phi3Config}
    if family in configs:
        return build(configs[family](**PHI), dtype)
    return tiny_model(family, dtype)


def stand_ins(model: CausalLM) -> dict[str, nn.Module]:
    """By name, without those inside another."""
    found = {name: module for name, module in model.model.named_modules() if isinstance(module, KINDS)}
    return {name: module for name, module in found.items() if not any(name.startswith(f"{outer}.") for outer in found)}


def counts(model: CausalLM) -> tuple[int, ...]:
    found = Counter(type(module) for module in stand_ins(model).values())
    return tuple(found[kind] for kind in KINDS)


@torch.inference_mode()
def outputs(model: CausalLM) -> Iterator[tuple[str, Tensor]]:
    """What each module returned in a forward pass over 40 tokens, and the logits as `logits`."""
    noted: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        return lambda _module, _args, output: noted.__setitem__(name, output[0] if type(output) is tuple else output)

    hooks = [module.register_forward_hook(note(name)) for name, module in model.model.named_modules()]
    tokens = torch.arange(40)[None]
    noted["logits"] = model.logits(model.hidden_states(tokens * 31 % VOCAB_SIZE, tokens, ObservedStep()))
    for hook in hooks:
        hook.remove()
    yield from ((name, output) for name, output in noted.items() if isinstance(output, Tensor))


@pytest.mark.parametrize("family", EXPECTED)
def test_every_stand_in_is_held_against_the_original(family: str) -> None:
    original = paged(make(family))
    optimized = optimize(paged(make(family)))
    assert counts(optimized) == EXPECTED[family]
    expected, actual = dict(outputs(original)), dict(outputs(optimized))
    names = ["logits", *stand_ins(optimized)]
    assert {name: relative_difference(actual[name], expected[name]) for name in names} == dict.fromkeys(
        names, pytest.approx(0, abs=2e-5)
    )


@pytest.mark.parametrize("family", EXPECTED)
def test_bfloat16_is_no_further_from_float32_than_the_original(family: str) -> None:
    exact = dict(outputs(paged(make(family, torch.bfloat16).float())))["logits"]
    original = dict(outputs(paged(make(family, torch.bfloat16))))["logits"]
    optimized = optimize(paged(make(family, torch.bfloat16)))
    assert counts(optimized) == EXPECTED[family]
    actual = dict(outputs(optimized))["logits"]
    assert relative_difference(actual, exact) < 1.2 * relative_difference(original, exact)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_no_weight_is_kept_twice(family: str) -> None:
    original, optimized = make(family, torch.bfloat16), optimize(paged(make(family, torch.bfloat16))).model
    padding = 1.2  # panels are padded to 32 columns, which is much only of tiny matrices; norms are float32
    assert memory(optimized) < padding * memory(original)


def memory(model: nn.Module) -> int:
    storages = {tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())}
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_a_part_of_a_file_gets_memory_of_its_own() -> None:
    model = make("gpt2")
    file = torch.zeros(10**6)
    norm: Any = model.get_submodule("transformer.ln_f")
    norm.weight.data = file[5 : 5 + norm.weight.numel()].copy_(norm.weight.detach())
    expected = norm.weight.clone()
    norm = optimize(paged(model)).model.get_submodule("transformer.ln_f")
    assert norm.weight.untyped_storage().nbytes() == norm.weight.nbytes
    assert torch.equal(norm.weight, expected)


def test_what_computes_something_else_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = make("llama")
    mlp: Any = model.get_submodule("model.layers.1.mlp")
    mlp.forward = MethodType(lambda self, x: type(self).forward(self, x) * 1.001, mlp)
    attention: Any = model.get_submodule("model.layers.0.self_attn")
    attention.forward = MethodType(lambda self, **kwargs: strange(type(self).forward(self, **kwargs)), attention)
    before = dict(outputs(paged(copy.deepcopy(model))))["logits"]
    with caplog.at_level(logging.WARNING):
        optimized = optimize(paged(model))
    assert counts(optimized) == (1, 1, 5, 1 + 3 + 4, 0), "their linear layers are packed all the same"
    assert [record.message for record in caplog.records] == [
        "left as they were, having come out differently: 1 LlamaAttention, 1 LlamaMLP"
    ]
    assert relative_difference(dict(outputs(optimized))["logits"], before) < 2e-5


def strange(result: tuple[Tensor, None]) -> tuple[Tensor, None]:
    return result[0] + 0.1 * result[0].abs().mean(), None


def test_a_second_time_changes_nothing() -> None:
    once = optimize(paged(make("llama")))
    expected = dict(outputs(once))["logits"]
    twice = optimize(once)
    assert counts(twice) == EXPECTED["llama"]
    assert torch.equal(dict(outputs(twice))["logits"], expected)


def test_float16_stays_as_it_is() -> None:
    model = paged(make("llama", torch.float16))
    assert optimize(model) is model
    assert counts(model) == (0,) * len(KINDS)


def test_a_gemma_embedding_keeps_its_scale() -> None:
    embedding: Any = optimize(paged(build(tiny_config("gemma3")))).model.get_input_embeddings()
    original: Any = build(tiny_config("gemma3")).get_input_embeddings()
    tokens = torch.arange(VOCAB_SIZE)
    assert torch.equal(embedding(tokens), original(tokens))
