"""Vectors through the real scheduler and cache: what they are, how many tokens they compute, and what they leave."""

import pytest

from openai_kv.request import FinishReason, Pooling, Request
from tests.fakes import FakeModelRunner, expected_output, fake_states
from tests.harness import Run, Shape, build_engine, embedding_request, fake_runner, make_request

PROMPT = list(range(10, 33))


def make(**shape: int) -> tuple[Run, FakeModelRunner]:
    sizes = Shape(**shape)
    runner = fake_runner(sizes)
    return Run(build_engine(runner, sizes)), runner


def check(run: Run, *requests: Request) -> None:
    """Each ended with the vector of its whole prompt, told once."""
    for request in requests:
        (output,) = run.outputs[request.request_id]
        states = fake_states(request.prompt_token_ids, 256)
        mean = [sum(column) / len(states) for column in zip(*states, strict=True)]
        expected = mean if request.params.pooling is Pooling.MEAN else states[-1]
        assert output.embedding is not None
        assert list(output.embedding) == pytest.approx(expected, abs=1e-6)
        assert (output.finish_reason, output.token_ids, output.text) == (FinishReason.STOP, (), "")


@pytest.mark.parametrize("budget", [8, 64])
def test_a_mean_computes_all_tokens_each_time_and_leaves_nothing(budget: int) -> None:
    run, runner = make(max_num_batched_tokens=budget)
    run.generate(make_request(PROMPT))
    before, rows = run.engine.stats().cache, runner.num_rows
    requests = [embedding_request(PROMPT, Pooling.MEAN) for _ in range(3)]
    run.generate(*requests)
    assert runner.num_rows - rows == 3 * len(PROMPT)
    after = run.engine.stats().cache
    assert (after.free, after.cached, after.tree_nodes) == (before.free, before.cached, before.tree_nodes)
    assert {run.last(request).cached_tokens + run.last(request).cache_write_tokens for request in requests} == {0}
    check(run, *requests)


@pytest.mark.parametrize("budget", [8, 64])
def test_the_last_state_comes_out_of_the_cache(budget: int) -> None:
    run, runner = make(max_num_batched_tokens=budget)
    cold, warm, exact = (embedding_request(prompt, Pooling.LAST) for prompt in (PROMPT, [*PROMPT, 7, 8], PROMPT))
    rows = []
    for request in (cold, warm, exact):
        run.generate(request)
        rows.append(runner.num_rows)
    assert rows == [len(PROMPT), len(PROMPT) + 2, len(PROMPT) + 2]
    assert (run.last(exact).hit_kind, run.last(exact).cached_tokens) == ("exact", len(PROMPT))
    check(run, cold, warm, exact)


def test_equal_prompts_at_once_are_computed_once_for_their_last_state() -> None:
    run, runner = make()
    requests = [embedding_request(PROMPT, Pooling.LAST) for _ in range(4)]
    run.generate(*requests)
    assert runner.num_rows == len(PROMPT)
    check(run, *requests)


def test_beside_generation_in_the_same_steps() -> None:
    run, runner = make(max_num_batched_tokens=16)
    chat, mean = make_request(PROMPT[:9], 12), embedding_request(PROMPT, Pooling.MEAN)
    last = embedding_request(PROMPT, Pooling.LAST)
    assert run.generate(chat, mean, last)[0] == expected_output(PROMPT[:9], 12, 256)
    shared = [step.keys() for step in runner.rows if chat.request_id in step and mean.request_id in step]
    assert len(shared) > 1
    check(run, mean, last)


def test_generation_goes_on_from_what_a_last_state_left() -> None:
    run, runner = make()
    run.generate(embedding_request(PROMPT, Pooling.LAST))
    rows, request = runner.num_rows, make_request(PROMPT, 4)
    assert run.generate(request) == [expected_output(PROMPT, 4, 256)]
    assert runner.num_rows - rows == 3


def test_a_mean_that_is_pushed_back_begins_again() -> None:
    run, _ = make(num_blocks=14, max_model_len=48, max_num_seqs=2, max_num_batched_tokens=4)
    other, mean = make_request(PROMPT[:14], 30), embedding_request(range(50, 85), Pooling.MEAN)
    run.add(other, mean)
    while not mean.num_preemptions and run.engine.has_work:
        run.step()
    assert mean.num_preemptions and mean.embedding is None
    run.until_idle()
    check(run, mean)


def test_an_abort_in_the_middle_leaves_no_block() -> None:
    run, runner = make(max_num_batched_tokens=8)
    requests = [embedding_request(PROMPT, pooling) for pooling in Pooling]
    run.add(*requests)
    run.step()
    for request in requests:
        run.take(run.engine.abort(request.request_id))
        assert (run.last(request).embedding, run.finish_reason(request)) == (None, FinishReason.ABORT)
    run.until_idle()
    assert run.engine.stats().cache.free == 64 and runner.num_rows == 8
