"""In bfloat16, bit by bit: the same logits however a prompt is cut, cached and batched."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from openai_kv.errors import ConfigError
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.fused.quantize import quantize
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.probe import check_invariant
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import TokenLogprobs
from tests.model_runner.driver import GREEDY, Driver, Stream, paged, random_prompt
from tests.tiny_models import save_tiny_model, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")
PROMPT = random_prompt(1, 75)
NUM_TOKENS = 6
LOGPROBS = replace(GREEDY, logprobs=20)


class Invariant(Driver):
    def __init__(self, family: str, quantization: str, kv_format: str = "auto") -> None:
        super().__init__(family, num_blocks=256)
        backend = select_backend("cpu", CPU, batch_invariant=True)
        model = optimize(paged(tiny_model(family, torch.bfloat16)))
        model = model if quantization == "none" else quantize(model, quantization)
        settings = RunnerSettings(block_size=16, num_blocks=256, kv_cache_dtype=kv_format)
        self.runner = ModelRunner(model, backend, "tiny", settings)

    def answer(self, stream: Stream, chunk: int, *others: Stream) -> list[TokenLogprobs]:
        """Log probabilities of the first tokens; the prompt in chunks, the others' rows in every step."""
        found: list[TokenLogprobs] = []
        while len(found) < NUM_TOKENS:
            parts = ((stream, min(chunk, stream.num_pending)), *((other, None) for other in others))
            output = self.step(*parts)
            found += output.logprobs.get(stream.request_id, [])
        return found


@pytest.mark.parametrize(
    ("family", "quantization", "kv_format"),
    [
        *((name, "none", "auto") for name in ("llama", "qwen3", "mistral", "gemma2", "gemma3", "gpt2")),
        ("llama", "int8", "auto"),
        ("llama", "int4", "auto"),
        ("llama", "none", "int8"),
        ("gemma3", "none", "int8-int4"),
        ("llama", "none", "int4"),
    ],
)
def test_cold_warm_chunked_and_batched_are_the_same_bits(family: str, quantization: str, kv_format: str) -> None:
    driver = Invariant(family, quantization, kv_format)
    cold = driver.stream("cold", PROMPT, params=LOGPROBS)
    expected = driver.answer(cold, 1000)
    for chunk in (1, 7, 33):
        assert driver.answer(driver.stream(f"in chunks of {chunk}", PROMPT, params=LOGPROBS), chunk) == expected
    warm = driver.stream("warm", PROMPT, params=LOGPROBS)
    warm.block_ids[:4] = cold.block_ids[:4]
    warm.computed = 64
    assert driver.answer(warm, 1000) == expected
    others = [driver.stream(str(number), random_prompt(number, 3 + 11 * number)) for number in range(2, 7)]
    assert driver.answer(driver.stream("batched", PROMPT, params=LOGPROBS), 20, *others) == expected
    torch.set_num_threads(3)
    assert driver.answer(driver.stream("threads", PROMPT, params=LOGPROBS), 30) == expected


def test_a_runner_that_is_loaded_so_checks_itself(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path)
    settings = RunnerSettings(dtype="bfloat16", num_blocks=16, batch_invariant=True)
    runner = ModelRunner.load(folder, "tiny", settings)
    check_invariant(runner.model, runner.backend)
    with pytest.raises(ConfigError, match="batch_invariant: only attention backend cpu"):
        ModelRunner.load(folder, "tiny", replace(settings, attention_backend="sdpa"))


def test_what_depends_on_the_step_is_refused() -> None:
    backend = select_backend("cpu", CPU, batch_invariant=True)
    model = optimize(paged(tiny_model("llama", torch.bfloat16)))
    model.decoder.register_forward_hook(lambda _module, _args, output: scale(output))
    with pytest.raises(ConfigError, match="LlamaForCausalLM has parts"):
        check_invariant(model, backend)


def scale(output: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    output["last_hidden_state"] = output["last_hidden_state"] * (1 + output["last_hidden_state"].shape[1] / 10)
    return output
