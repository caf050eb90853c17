"""A draw depends on seed, choice, position and logits only: the same text alone, in a batch, beside other choices."""

from dataclasses import replace

import pytest

from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import Request
from tests.harness import Run, Shape, build_engine, make_request
from tests.model_runner.driver import paged_runner, random_prompt
from tests.tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = Shape(num_blocks=96, block_size=8, max_num_batched_tokens=64, max_model_len=256)
TOKENS = 24


@pytest.fixture(scope="module", params=["sdpa", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run_of(backend: str, shape: Shape = SHAPE) -> Run:
    settings = RunnerSettings(block_size=shape.block_size, num_blocks=shape.num_blocks, num_hidden_slots=8)
    return Run(build_engine(paged_runner(tiny_model("llama"), settings, backend), shape))


def seeded(number: int, seed: int, choice: int = 0) -> Request:
    prompt = random_prompt(number, 11 + 3 * number)
    return make_request(prompt, TOKENS, seed=seed, choice=choice, temperature=0.9, top_p=0.95, ignore_eos=True)


def test_alone_and_in_a_batch(backend: str) -> None:
    alone = [run_of(backend).generate(seeded(number, 40 + number))[0] for number in range(5)]
    together = run_of(backend).generate(*(seeded(number, 40 + number) for number in range(5)))
    tiny = run_of(backend, replace(SHAPE, max_num_batched_tokens=7, max_num_seqs=3, num_blocks=12))
    assert alone == together == tiny.generate(*(seeded(number, 40 + number) for number in range(5)))
    assert run_of(backend).generate(seeded(0, 41))[0] != alone[0], "another seed is another text"


def test_choices_differ_and_the_first_is_the_only_one_of_n_1(backend: str) -> None:
    alone = run_of(backend).generate(seeded(1, 7))[0]
    run = run_of(backend)
    four = run.generate(*(seeded(1, 7, choice) for choice in range(4)))
    assert four[0] == alone
    assert len({tuple(tokens) for tokens in four}) == 4
    assert run.generate(seeded(2, 1), *(seeded(1, 7, choice) for choice in range(4)))[1:] == four, (
        "warm, beside another"
    )
    assert run_of(backend).generate(seeded(1, 7, 2)) == four[2:3], "a choice by itself"
