"""Requests that ask how likely their prompt is: they run all of it, whatever the cache holds, and are told once."""

import pytest

from openai_kv.request import TokenLogprobs
from tests.fakes import FakeModelRunner, expected_output, fake_logprobs
from tests.harness import Run, Shape, build_engine, fake_runner, make_request

PROMPT = list(range(10, 33))


def make(**shape: int) -> tuple[Run, FakeModelRunner]:
    sizes = Shape(**shape)
    runner = fake_runner(sizes)
    return Run(build_engine(runner, sizes)), runner


def expected(prompt: list[int], count: int) -> list[TokenLogprobs]:
    return [fake_logprobs(prompt[:end], prompt[end], count, 256) for end in range(1, len(prompt))]


@pytest.mark.parametrize("budget", [8, 64])
@pytest.mark.parametrize("max_tokens", [0, 4])
def test_cold_and_warm(budget: int, max_tokens: int) -> None:
    run, runner = make(max_num_batched_tokens=budget)
    for _ in range(2):
        request, rows = make_request(PROMPT, max_tokens, prompt_logprobs=2), runner.num_rows
        assert run.generate(request) == [expected_output(PROMPT, max_tokens, 256)]
        assert runner.num_rows - rows == len(PROMPT) + max(max_tokens - 1, 0)
        told = [entry for output in run.outputs[request.request_id] for entry in output.prompt_logprobs]
        assert told == expected(PROMPT, 2)
        assert (run.last(request).cached_tokens, run.last(request).hit_kind) == (0, "miss")
    stats = run.engine.stats().cache
    assert (stats.miss_count, stats.hit_count, stats.prompt_tokens) == (2, 0, 2 * len(PROMPT))


def test_others_wait_for_its_blocks_and_it_waits_for_nobody() -> None:
    run, runner = make()
    before, asking, after = make_request(PROMPT), make_request(PROMPT, prompt_logprobs=0), make_request(PROMPT)
    run.generate(before, asking, after)
    assert [run.last(request).cached_tokens for request in (before, asking)] == [0, 0]
    assert run.last(after).cached_tokens == len(PROMPT)
    assert len(runner.rows[0]) == 2


def test_further_choices_share_a_prompt_that_is_reported() -> None:
    run, runner = make(max_num_batched_tokens=8)
    choices = [make_request(PROMPT, 4, choice=k, prompt_logprobs=None if k else 1) for k in range(3)]
    run.generate(*choices)
    assert runner.num_rows == len(PROMPT) + 3 * 3


def test_pushed_back_within_its_output_it_is_not_reported_again() -> None:
    run, _ = make(num_blocks=14, max_model_len=48)
    other, asking = make_request(PROMPT[:7], 30), make_request(PROMPT[8:15], 30, prompt_logprobs=1, logprobs=1)
    assert run.generate(other, asking)[1] == expected_output(PROMPT[8:15], 30, 256)
    assert asking.num_preemptions > 0
    outputs = run.outputs[asking.request_id]
    assert [entry for output in outputs for entry in output.prompt_logprobs] == expected(PROMPT[8:15], 1)
    assert [entry.token_id for output in outputs for entry in output.logprobs] == run.tokens(asking)
