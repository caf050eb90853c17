"""Over rows in int8 and int4 too: the same answer, cached or not, bit by bit, whatever cache, batch and pool do."""

from dataclasses import replace

import pytest
import torch

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import Request
from tests.harness import Run, Shape, build_engine, make_request
from tests.model_runner.driver import paged, random_prompt
from tests.tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
ROOMY = Shape(num_blocks=128, block_size=7, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=120)
NEW_TOKENS = 40


def make_run(shape: Shape, kv_format: str) -> Run:
    """Batch-invariant, so that nothing but the cache could make answers differ."""
    settings = RunnerSettings(
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        num_hidden_slots=shape.num_hidden_slots,
        max_model_len=shape.max_model_len,
        kv_cache_dtype=kv_format,
    )
    backend = select_backend("cpu", torch.device("cpu"), batch_invariant=True)
    model = optimize(paged(tiny_model("llama", torch.bfloat16)))
    return Run(build_engine(ModelRunner(model, backend, "tiny", settings), shape))


def greedy(prompt: list[int]) -> Request:
    return make_request(prompt, NEW_TOKENS, temperature=0.0, ignore_eos=True)


@pytest.mark.parametrize("kv_format", ["int8", "int8-int4"])
def test_hits_copies_and_preemption_change_nothing(kv_format: str) -> None:
    shared = random_prompt(1, 23)
    prompts = [[*shared, *random_prompt(10 + number, 4 + 3 * number)] for number in range(5)]
    cold = [make_run(ROOMY, kv_format).generate(greedy(prompt))[0] for prompt in prompts]
    run = make_run(replace(ROOMY, num_blocks=26), kv_format)
    requests = [greedy(prompt) for prompt in (*prompts, *prompts[::-1])]
    assert run.generate(*requests[:5]) == cold
    assert [run.generate(request)[0] for request in requests[5:]] == cold[::-1]
    stats = run.engine.stats()
    assert stats.preemptions > 0 and stats.cache.eviction_count > 0
    assert {run.last(request).hit_kind for request in requests} >= {"exact", "partial"}


def test_rounding_shows() -> None:
    """Answers over fewer bits are others, so the tests above could fail."""
    prompts = [random_prompt(number, 60) for number in range(6)]
    over = {name: make_run(ROOMY, name).generate(*map(greedy, prompts)) for name in ("auto", "int8-int4")}
    assert over["auto"] != over["int8-int4"]
