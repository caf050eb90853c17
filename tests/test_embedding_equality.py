"""Vectors equal what transformers' own forward makes of a text in float32, whatever cache, batch and chunks do."""

from functools import cache

import pytest
import torch
from torch import Tensor

from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import Pooling, Request
from tests.harness import Run, Shape, build_engine, embedding_request, make_request
from tests.model_runner.driver import paged_runner, random_prompt
from tests.tiny_models import FAMILIES, WINDOW, tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = Shape(num_blocks=64, block_size=7, max_num_batched_tokens=256)
LENGTHS = (1, 30, 3 * WINDOW)
TOLERANCE = 1e-5


@cache
@torch.inference_mode()
def states(family: str, prompt: tuple[int, ...]) -> Tensor:
    """After the final norm, [len(prompt), hidden_size], by the model's own eager attention."""
    found: Tensor = tiny_model(family).base_model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0]
    return found


def make(family: str, budget: int, backend: str = "sdpa") -> Run:
    settings = RunnerSettings(block_size=SHAPE.block_size, num_blocks=SHAPE.num_blocks, num_hidden_slots=8)
    shape = Shape(SHAPE.num_blocks, SHAPE.block_size, max_num_seqs=min(8, budget), max_num_batched_tokens=budget)
    return Run(build_engine(paged_runner(tiny_model(family), settings, backend), shape))


def check(run: Run, family: str, *requests: Request) -> None:
    for request in requests:
        rows = states(family, request.prompt_token_ids)
        expected = rows.mean(0) if request.params.pooling is Pooling.MEAN else rows[-1]
        embedding = run.last(request).embedding
        assert embedding is not None
        torch.testing.assert_close(torch.tensor(list(embedding)), expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("budget", [8, 256])
@pytest.mark.parametrize("family", FAMILIES)
def test_beside_generation_in_chunks_and_whole(family: str, budget: int) -> None:
    run = make(family, budget)
    chat = make_request(random_prompt(9, 20), 24, temperature=0.0, ignore_eos=True)
    requests = [embedding_request(random_prompt(length, length), pooling) for pooling in Pooling for length in LENGTHS]
    run.generate(chat, *requests)
    check(run, family, *requests)


@pytest.mark.parametrize("backend", ["sdpa", "cpu"])
def test_from_the_cache(backend: str) -> None:
    """A shared beginning that ends inside a block, and the very same text again."""
    run, prompt = make("llama", 256, backend), random_prompt(1, 31)
    first, shared, again = (
        embedding_request(tokens, Pooling.LAST) for tokens in (prompt, [*prompt[:24], *random_prompt(2, 9)], prompt)
    )
    for request in (first, shared, again):
        run.generate(request)
    assert [run.last(request).cached_tokens for request in (first, shared, again)] == [0, 24, 31]
    check(run, "llama", first, shared, again)


def test_a_mean_of_what_is_cached_is_the_mean_of_all_of_it() -> None:
    run, prompt = make("llama", 256), random_prompt(1, 31)
    run.generate(make_request(prompt, 4, temperature=0.0))
    mean = embedding_request(prompt, Pooling.MEAN)
    run.generate(mean)
    check(run, "llama", mean)
