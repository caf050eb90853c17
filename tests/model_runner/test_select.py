"""Which attention backend is taken where, without a GPU to be had."""

import pytest
import torch
from torch import Tensor

from openai_kv.errors import ConfigError
from openai_kv.model_runner.attention.sdpa import SdpaBackend
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.attention.trial import Shape, hold_against_sdpa
from tests.model_runner.driver import Driver, random_prompt, reference
from tests.tiny_models import tiny_model

pytest.importorskip("triton")

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
pytestmark = pytest.mark.usefixtures("one_thread")


class Off(SdpaBackend):
    """Forgets the window."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, layer, metadata, options, mass) -> Tensor:  # type: ignore[no-untyped-def]
        plain = type(options)(options.scale, None, options.softcap, options.sinks)
        return super().forward(query, key, value, layer, metadata, plain, mass)


def test_a_backend_that_computes_something_else_is_refused() -> None:
    hold_against_sdpa(SdpaBackend(), CPU, Shape(5))
    with pytest.raises(ArithmeticError, match=r"sliding_window=13.*off by"):
        hold_against_sdpa(Off(), CPU, Shape(5))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(caplog: pytest.LogCaptureFixture) -> None:
    assert select_backend("auto", CUDA).name == "sdpa"
    assert "varlen and triton are not available, using sdpa" in caplog.text
    with pytest.raises(ConfigError, match="attention_backend: 'triton' can't run on cuda"):
        select_backend("triton", CUDA)
    with pytest.raises(ConfigError, match=r"attention_backend: 'varlen' can't run on cpu: .*no FlashAttention"):
        select_backend("varlen", CPU)
    with pytest.raises(ConfigError, match="only attention backend cpu can do it"):
        select_backend("triton", CPU, batch_invariant=True)


def test_a_model_with_windows_and_soft_caps_through_triton() -> None:
    driver = Driver("gemma2", backend="triton", block_size=7)
    assert driver.runner.info.attention_backend == "triton"
    stream = driver.stream("a", random_prompt(3, 30))
    driver.generate(stream, num_tokens=3)
    expected = reference(tiny_model("gemma2"), stream.prompt, 3)
    assert expected.near_ties(stream.output) == 0
