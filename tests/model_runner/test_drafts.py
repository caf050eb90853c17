"""Drafted rows on real (tiny) models: each row says what it would say without drafts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.model_runner.step_times import ROWS, measure_steps
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from openai_kv.request import Request, SamplingParams, TokenLogprobs
from tests.harness import Run, Shape, build_engine, make_request
from tests.model_runner.driver import GREEDY, Driver, Stream, paged_runner, random_prompt
from tests.tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = random_prompt(5, 21)
TOKENS = 12
PARAMS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(512, temperature=0.8, top_p=0.95),
    "penalties": SamplingParams(
        512, temperature=0.7, frequency_penalty=0.7, presence_penalty=0.5, repetition_penalty=1.3
    ),
    "not yet": SamplingParams(512, temperature=0.0, min_tokens=7, logit_bias={1: 100.0}),
}


def said(driver: Driver, name: str, params: SamplingParams) -> list[int]:
    stream = driver.stream(name, PROMPT, params=params, seed=7)
    driver.generate(stream, num_tokens=TOKENS)
    return stream.output


def with_drafts(driver: Driver, stream: Stream, drafts: Sequence[int]) -> ModelRunnerOutput:
    request = stream.take()
    assert len(request.token_ids) == 1
    return driver.execute(replace(request, token_ids=[*request.token_ids, *drafts], num_drafts=len(drafts)))


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("right", [0, 1, 4])
def test_right_drafts_and_one_token_more(family: str, params: SamplingParams, right: int) -> None:
    driver = Driver(family)
    expected = said(driver, "without", params)
    stream = driver.stream("with", PROMPT, params=params, seed=7)
    driver.generate(stream, num_tokens=3)
    drafts = [*expected[3 : 3 + right], (expected[3 + right] + 1) % 200, 5]
    assert list(with_drafts(driver, stream, drafts).sampled_token_ids["with"]) == expected[3 : 4 + right]
    stream.output += expected[3 : 4 + right]
    stream.computed += right
    driver.generate(stream, num_tokens=TOKENS)
    assert stream.output == expected, "what wrong drafts left in the pool is written over"


def test_drafts_of_several_requests_in_one_step() -> None:
    driver = Driver("llama")
    expected = {name: said(driver, f"without {name}", params) for name, params in PARAMS.items()}
    streams = [driver.stream(name, PROMPT, params=params, seed=7) for name, params in PARAMS.items()]
    driver.generate(*streams, num_tokens=3)
    drafts = [expected[stream.request_id][3 : 3 + number] for number, stream in enumerate(streams)]
    requests = [
        replace(request, token_ids=[*request.token_ids, *draft], num_drafts=len(draft))
        for request, draft in zip((stream.take() for stream in streams), drafts, strict=True)
    ]
    output = driver.execute(*requests)
    found = {name: list(tokens) for name, tokens in output.sampled_token_ids.items()}
    assert found == {name: expected[name][3 : 4 + number] for number, name in enumerate(PARAMS)}


def engine_run(speculation: str) -> tuple[Run, list[SchedulerOutput]]:
    shape = Shape(num_blocks=96, block_size=8, max_num_batched_tokens=64, max_model_len=256)
    settings = RunnerSettings(block_size=8, num_blocks=96, num_hidden_slots=8)
    runner, steps = paged_runner(tiny_model("llama"), settings), list[SchedulerOutput]()
    run = Run(build_engine(runner, shape, speculation=speculation))
    execute = runner.execute_model

    def recording(scheduled: SchedulerOutput) -> ModelRunnerOutput:
        steps.append(scheduled)
        return execute(scheduled)

    runner.execute_model = recording  # type: ignore[method-assign]
    return run, steps


def seeded(number: int, **changes: Any) -> Request:
    params = {"seed": 40 + number % 2, "temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1, "logprobs": 2}
    return make_request(random_prompt(number % 2, 11), 24, ignore_eos=True, **params | changes)


def logprobs(run: Run, request: Request) -> list[TokenLogprobs]:
    return [entry for output in run.outputs[request.request_id] for entry in output.logprobs]


def test_sampled_texts_are_the_same_and_so_are_their_log_probabilities() -> None:
    """The second round says what the first one said, so the tree knows it; another seed parts from it."""
    told = {}
    for mode in ("off", "auto"):
        run, steps = engine_run(mode)
        rounds = [[seeded(0), seeded(1)], [seeded(0), seeded(1), seeded(0, seed=3), seeded(1, temperature=0.2)]]
        told[mode] = [(run.generate(*requests), [logprobs(run, each) for each in requests]) for requests in rounds]
    drafts = sum(item.num_drafts for step in steps for item in step.requests)
    assert drafts > 40
    for (off_tokens, off_values), (tokens, values) in zip(told["off"], told["auto"], strict=True):
        assert tokens == off_tokens
        for one, other in zip(off_values, values, strict=True):
            assert [entry.token_id for entry in one] == [entry.token_id for entry in other]
            assert [entry.logprob for entry in one] == pytest.approx([entry.logprob for entry in other], abs=1e-4)


def test_steps_are_timed_as_far_as_there_is_room() -> None:
    times = measure_steps(Driver("llama", num_blocks=64).runner, 512)
    assert tuple(times) == ROWS
    assert all(0 < seconds < float("inf") for seconds in times.values())
    assert tuple(measure_steps(Driver("llama", num_blocks=3, block_size=16).runner, 20)) == (1, 2, 4, 8, 16)
    assert tuple(measure_steps(Driver("llama", num_blocks=3, block_size=1).runner, 1)) == (1,)
    assert tuple(measure_steps(Driver("llama", num_blocks=1, block_size=1).runner, 8)) == (1,), "and no context"


def test_steps_are_timed_where_a_window_group_has_few_blocks() -> None:
    runner = Driver("mistral", num_blocks=64, block_size=7, window_layout="auto", max_num_batched_tokens=16).runner
    assert runner.window_pool is not None and runner.num_window_blocks < 128 // 7
    assert tuple(measure_steps(runner, 512)) == ROWS
    assert not any(part[0].any() for layer in runner.window_pool.layers for part in (layer.key, layer.value))
