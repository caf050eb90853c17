"""A decoder layer as one operator: the same bits as its parts, which are held against the original elsewhere."""

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch

from openai_kv.model_runner.attention.interface import PagedStep
from openai_kv.model_runner.fused.agreement import Agreement, relative_difference
from openai_kv.model_runner.fused.forward import FusedForward
from openai_kv.model_runner.fused.layer import FusedLayer
from openai_kv.model_runner.fused.observe import Call, ObservedStep
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.fused.quantize import quantize
from openai_kv.model_runner.loader import CausalLM
from openai_kv.outputs import ModelRunnerOutput
from openai_kv.request import TokenLogprobs
from tests.model_runner.driver import GREEDY, Driver, paged, random_prompt
from tests.model_runner.fused.test_optimize import make, outputs

pytestmark = pytest.mark.usefixtures("one_thread")
LOGPROBS = replace(GREEDY, logprobs=20)
# Layers, of two, and whether the forward of the decoder is ours.
EXPECTED = {
    "llama": (2, True),
    "qwen2": (2, True),
    "qwen3": (2, True),
    "mistral": (2, True),
    "gemma2": (2, True),
    "gemma3": (2, False),
    "phi3": (2, True),
    "phi": (0, False),
    "gpt2": (0, False),
    "gpt_oss": (0, False),
}


def layers(model: CausalLM) -> list[FusedLayer]:
    return [module for module in model.model.modules() if isinstance(module, FusedLayer)]


def fused(family: str, dtype: torch.dtype = torch.float32, quantization: str = "none") -> CausalLM:
    model = optimize(paged(make(family, dtype)))
    return model if quantization == "none" else quantize(model, quantization)


def start(model: CausalLM, **settings: Any) -> Driver:
    return Driver(model.model, backend="cpu", **settings)


def run(driver: Driver) -> list[ModelRunnerOutput]:
    """A prompt in chunks, a second one with shared blocks beside it, then both decode."""
    one = driver.stream("one", random_prompt(0, 61), params=LOGPROBS)
    two = driver.stream("two", [*one.prompt[:48], *random_prompt(1, 7)], params=LOGPROBS)
    found = [driver.step((one, 33)), driver.step((one, None))]
    two.block_ids[:3], two.computed = one.block_ids[:3], 48
    two.window_block_ids[:3] = one.window_block_ids[:3]
    return [*found, driver.step((two, None), (one, 1)), *(driver.step((one, 1), (two, 1)) for _ in range(3))]


def in_parts(model: CausalLM) -> CausalLM:
    for layer in layers(model):
        layer.operator = None
    return model


def told(steps: list[ModelRunnerOutput]) -> list[tuple[Mapping[str, Any], Mapping[int, float]]]:
    return [(step.logprobs, step.attention_mass) for step in steps]


@pytest.mark.parametrize("family", EXPECTED)
def test_which_families_have_them(family: str) -> None:
    model = fused(family)
    num_layers, own_forward = EXPECTED[family]
    assert [layer.operator is not None for layer in layers(model)] == [True] * num_layers
    assert isinstance(model.decoder.forward, FusedForward) == own_forward
    original, actual = (dict(outputs(each)) for each in (paged(make(family)), model))
    for name in ["logits", *(name for name, module in model.model.named_modules() if isinstance(module, FusedLayer))]:
        assert relative_difference(actual[name], original[name]) < 2e-5


@pytest.mark.parametrize(
    ("family", "dtype", "quantization", "settings"),
    [
        *((family, torch.float32, "none", {}) for family, (count, _) in EXPECTED.items() if count),
        ("llama", torch.bfloat16, "none", {"needs_attention": True}),
        ("gemma3", torch.bfloat16, "none", {"window_layout": "auto", "window_share": 1.0, "needs_attention": True}),
        ("llama", torch.bfloat16, "int8", {"kv_cache_dtype": "int8"}),
        ("qwen3", torch.bfloat16, "int4", {"kv_cache_dtype": "int8-int4"}),
        ("llama", torch.float32, "none", {"kv_cache_dtype": "bfloat16"}),
    ],
)
def test_one_operator_gives_the_same_bits_as_the_parts(
    monkeypatch: pytest.MonkeyPatch, family: str, dtype: torch.dtype, quantization: str, settings: dict[str, Any]
) -> None:
    expected = run(start(in_parts(fused(family, dtype, quantization)), **settings))
    driver = start(fused(family, dtype, quantization), **settings)
    monkeypatch.setattr(PagedStep, "attend", None)
    assert told(run(driver)) == told(expected)
    assert sum(len(step.logprobs) for step in expected) == 9
    assert all(bool(step.attention_mass) == ("needs_attention" in settings) for step in expected)


def test_keys_that_are_rounded_later_go_through_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = start(fused("llama"), kv_cache_dtype="int4")
    monkeypatch.setattr(PagedStep, "attend", None)
    with pytest.raises(TypeError, match="not callable"):
        run(driver)


def test_hooks_see_each_layer_and_what_it_takes() -> None:
    model, rows = fused("llama"), list[int]()
    model.decoder.get_submodule("layers.0").register_forward_pre_hook(
        lambda _module, args: rows.append(args[0].shape[1])
    )
    driver = start(model)
    rows.clear()
    stream = driver.stream("a", random_prompt(0, 30))
    driver.step((stream, 20))
    driver.step((stream, None))
    driver.step((stream, None))
    assert rows == [20, 10, 1]


def test_the_last_layer_finishes_the_rows_that_are_looked_at() -> None:
    model, finished = fused("llama"), list[list[int]]()
    model.decoder.get_submodule("norm").register_forward_pre_hook(
        lambda _module, args: finished.append(args[0][0].any(-1).nonzero().flatten().tolist())
    )
    driver = start(model)
    finished.clear()
    stream, other = driver.stream("a", random_prompt(0, 30)), driver.stream("b", random_prompt(1, 9))
    driver.step((stream, 20))
    driver.step((stream, None), (other, 8))
    driver.step((stream, None), (other, None))
    assert finished == [[], [9], [0, 1]]


def test_a_layer_that_adds_something_else_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = make("llama")
    layer: Any = model.get_submodule("model.layers.1")
    layer.forward = MethodType(lambda self, *args, **kwargs: 1.001 * type(self).forward(self, *args, **kwargs), layer)
    with caplog.at_level(logging.WARNING):
        optimized = optimize(paged(model))
    assert [record.message for record in caplog.records] == [
        "left as they were, having come out differently: 1 LlamaDecoderLayer"
    ]
    assert len(layers(optimized)) == 1
    assert not isinstance(optimized.decoder.forward, FusedForward)


def test_a_layer_with_a_part_that_is_not_ours_calls_its_parts() -> None:
    model = make("llama")
    mlp: Any = model.get_submodule("model.layers.0.mlp")
    mlp.forward = MethodType(lambda self, x: type(self).forward(self, x) * 1.001, mlp)
    optimized = optimize(paged(model))
    assert [layer.operator is not None for layer in layers(optimized)] == [False, True]
    expected = run(start(paged(model)))
    assert [step.sampled_token_ids for step in run(start(optimized))] == [step.sampled_token_ids for step in expected]


def test_quantized_parts_are_joined_anew() -> None:
    model = fused("llama")
    before: list[TokenLogprobs] = run(start(model))[-1].logprobs["one"]  # type: ignore[assignment]
    assert run(start(quantize(model, "int8")))[-1].logprobs["one"] != before


class InTuple(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return (super().forward(x),)


def test_a_tensor_does_not_stand_in_for_a_tuple() -> None:
    module, call = InTuple(4, 4), Call((torch.ones(1, 4),), {})
    with torch.no_grad():
        for forward, stands_in in ((InTuple.forward, True), (torch.nn.Linear.forward, False)):
            found = Agreement(ObservedStep()).best(module, call, [partial(called_as, forward)])
            assert (found is not None) == stands_in


def called_as(forward: Callable[..., Any], module: torch.nn.Module) -> torch.nn.Module:
    stand_in = copy.deepcopy(module)
    stand_in.forward = MethodType(forward, stand_in)
    return stand_in
