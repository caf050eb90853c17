"""What is accepted at load, and what is refused by name, in one line."""

from typing import Any

import pytest
import torch
from transformers import (
    FalconConfig,
    LlamaConfig,
    MambaConfig,
    PhimoeConfig,
    PreTrainedConfig,
    Qwen2MoeConfig,
    StableLmConfig,
)

from openai_kv.errors import ModelLoadError
from openai_kv.model_runner.attention.backend import AttentionOptions, LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.sdpa import SdpaBackend
from openai_kv.model_runner.kv_pool import LayerShape
from openai_kv.model_runner.probe import ModelShapes, check, measure
from tests.model_runner.driver import paged
from tests.tiny_models import FAMILIES, WINDOW, build, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
EXPERTS: dict[str, Any] = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
WINDOWED: dict[str, Any] = {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 2}


def rotary(kind: str, **options: Any) -> PreTrainedConfig:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, **options}
    return LlamaConfig(**SMALL, rope_parameters=parameters)


def refusal(config: PreTrainedConfig) -> str:
    with pytest.raises(ModelLoadError) as caught:
        model = paged(build(config))
        measure(model)
        check(model, SdpaBackend())
    assert "\n" not in str(caught.value)
    return str(caught.value)


WINDOWS = {"mistral": (24, 24), **dict.fromkeys(("gemma2", "gemma3", "gpt_oss"), (24, None))}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_we_claim_is_accepted(family: str) -> None:
    model = paged(tiny_model(family))
    heads = 4 if family == "gpt2" else 2
    windows = WINDOWS.get(family, (None, None))
    assert measure(model) == ModelShapes((LayerShape(heads, 16, 16),) * 2, windows, 64, 211)
    check(model, SdpaBackend())


def test_mixture_of_experts_without_a_window_is_accepted() -> None:
    check(paged(build(Qwen2MoeConfig(**SMALL, **EXPERTS))), SdpaBackend())


def test_a_window_that_only_the_mask_knows() -> None:
    message = refusal(Qwen2MoeConfig(**SMALL, **EXPERTS, **WINDOWED))
    assert message.startswith("Qwen2MoeForCausalLM computes something else with paged attention")
    assert refusal(PhimoeConfig(**SMALL, num_local_experts=2, sliding_window=WINDOW)).startswith("PhimoeForCausalLM")


def test_layers_that_never_ask_for_attention() -> None:
    message = refusal(FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4))
    assert message == "FalconForCausalLM: layers 0, 1 never call the attention interface"
    assert refusal(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)).startswith("MambaForCausalLM")


def test_arguments_that_are_not_passed_on() -> None:
    assert "StableLmAttention does not hand our arguments" in refusal(StableLmConfig(**SMALL))


@pytest.mark.parametrize(
    "config",
    [
        rotary("dynamic", factor=2.0),
        rotary("longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 4, original_max_position_embeddings=64),
    ],
    ids=["dynamic", "longrope"],
)
def test_frequencies_that_move_with_the_longest_position(config: PreTrainedConfig) -> None:
    assert "LlamaForCausalLM: rotary embeddings of type" in refusal(config)


def test_fixed_scaled_frequencies_are_accepted() -> None:
    check(paged(build(rotary("linear", factor=2.0))), SdpaBackend())


def test_layers_of_other_kinds_are_refused() -> None:
    model = tiny_model("qwen3")
    model.config.layer_types = ["full_attention", "heavily_compressed_attention"]
    with pytest.raises(ModelLoadError, match="heavily_compressed_attention"):
        check(paged(model), SdpaBackend())


class Wrong(SdpaBackend):
    """A backend that forgets one thing."""

    def __init__(self, **forgotten: Any) -> None:
        super().__init__()
        self._forgotten = forgotten

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: LayerCache,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        mass: torch.Tensor | None,
    ) -> torch.Tensor:
        kept = {name: getattr(options, name) for name in ("scale", "sliding_window", "softcap", "sinks")}
        changed = AttentionOptions(**(kept | self._forgotten))
        return super().forward(query, key, value, layer, metadata, changed, mass)


@pytest.mark.parametrize(
    ("family", "forgotten"),
    [
        ("mistral", "sliding_window"),
        ("gemma3", "sliding_window"),
        ("gemma2", "softcap"),
        ("gpt_oss", "sinks"),
    ],
)
def test_the_probe_notices_what_a_backend_forgets(family: str, forgotten: str) -> None:
    with pytest.raises(ModelLoadError, match="computes something else"):
        check(paged(tiny_model(family)), Wrong(**{forgotten: None}))


def test_the_probe_leaves_the_model_and_the_random_state_alone() -> None:
    model = tiny_model("gemma3")
    before, state = {name: weight.clone() for name, weight in model.state_dict().items()}, torch.get_rng_state()
    check(paged(model), SdpaBackend())
    assert torch.equal(state, torch.get_rng_state())
    assert model.config.vocab_size == 211 and model.config.sliding_window == WINDOW
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
