"""A model with its packed layers in int8 or int4."""

import logging
from weakref import ref

import pytest

from openai_kv.errors import ConfigError
from openai_kv.model_runner.fused import quantize as quantizing
from openai_kv.model_runner.fused.agreement import relative_difference
from openai_kv.model_runner.fused.linear import PackedEmbedding, PackedLinear, QuantizedLinear
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.fused.quantize import quantize
from openai_kv.model_runner.quantization import WeightFormat, weight_format
from tests.model_runner.driver import paged
from tests.model_runner.fused.test_optimize import make, outputs

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_it_comes_close(family: str) -> None:
    exact = dict(outputs(paged(make(family))))["logits"]
    apart = {}
    for quantization in ("int8", "int4"):
        quantized = quantize(optimize(paged(make(family))), quantization)
        assert not any(isinstance(module, PackedLinear) for module in quantized.model.modules())
        apart[quantization] = relative_difference(dict(outputs(quantized))["logits"], exact)
    assert 1e-4 < apart["int8"] < 0.1
    assert 1.5 * apart["int8"] < apart["int4"] < 0.6


def test_the_head_is_int8_and_a_tied_embedding_stays(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        model = quantize(optimize(paged(make("gemma3"))), "int4").model
    bits = {name: module.bits for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}
    assert {name for name, width in bits.items() if width == 8} == {"lm_head"}
    assert set(bits.values()) == {4, 8}
    assert isinstance(model.get_input_embeddings(), PackedEmbedding)
    assert "int4, the head int8: 9 matrices" in caplog.records[-1].message


def test_what_was_not_packed_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantization: LlamaForCausalLM has no layers that can be int4"):
        quantize(paged(make("llama")), "int4")


def test_one_layer_at_a_time_is_there_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    model, left = optimize(paged(make("llama"))), list[int]()
    packed = [ref(module.packed) for module in model.model.modules() if isinstance(module, PackedLinear)]

    def count(quantization: str, *, is_head: bool) -> WeightFormat:
        left.append(sum(each() is not None for each in packed))
        return weight_format(quantization, is_head=is_head)

    monkeypatch.setattr(quantizing, "weight_format", count)
    quantize(model, "int8")
    assert left == [*range(len(packed), 0, -1)]
