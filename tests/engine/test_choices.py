"""Several answers to one prompt: it is computed once, counted once, and whoever goes first may be pushed back."""

import pytest

from tests.fakes import FakeModelRunner, expected_output
from tests.harness import Run, Shape, build_engine, fake_runner, make_request

PROMPT = list(range(10, 33))


def make(**shape: int) -> tuple[Run, FakeModelRunner]:
    sizes = Shape(**shape)
    runner = fake_runner(sizes)
    return Run(build_engine(runner, sizes)), runner


@pytest.mark.parametrize("budget", [8, 13, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 8, 23])
@pytest.mark.parametrize("num_hidden_slots", [0, 8])
def test_the_prompt_is_computed_once(length: int, budget: int, num_hidden_slots: int) -> None:
    """Shorter than a block, whole blocks, a tail; in chunks or not. Without a hidden state the last row runs again."""
    run, runner = make(max_num_batched_tokens=budget, num_hidden_slots=num_hidden_slots)
    choices = [make_request(PROMPT[:length], 6, choice=choice) for choice in range(4)]
    assert run.generate(*choices) == [expected_output(PROMPT[:length], 6, 256)] * 4
    assert runner.num_rows == length + 4 * 5 + (0 if num_hidden_slots else 3)
    assert run.last(choices[0]).cached_tokens == 0
    assert run.last(choices[0]).cache_write_tokens == length
    assert [run.last(choice).cache_write_tokens for choice in choices[1:]] == [0, 0, 0]


def test_prefill_only_computes_it_once_too() -> None:
    run, runner = make()
    run.generate(*(make_request(PROMPT, 0, choice=choice) for choice in range(3)))
    assert runner.num_rows == len(PROMPT)


def test_the_cache_counts_one_look_up_a_prompt() -> None:
    run, _ = make()
    for expected_hits in (0, 1):
        run.generate(*(make_request(PROMPT, 3, choice=choice) for choice in range(4)))
        stats = run.engine.stats().cache
        assert (stats.hit_count, stats.miss_count) == (expected_hits, 1)
    assert stats.prompt_tokens == 2 * len(PROMPT)


def test_another_choice_takes_over_when_the_first_goes() -> None:
    run, runner = make(max_num_batched_tokens=8)
    choices = [make_request(PROMPT, 4, choice=choice) for choice in range(3)]
    run.add(*choices)
    run.step()
    run.take(run.engine.abort(choices[0].request_id))
    run.until_idle()
    for choice in choices[1:]:
        assert run.tokens(choice) == expected_output(PROMPT, 4, 256)
    assert runner.num_rows == len(PROMPT) + 2 * 3


def test_choices_pushed_back_for_lack_of_blocks_come_back_with_the_same_text() -> None:
    run, _ = make(num_blocks=14, max_model_len=48)
    other = make_request(PROMPT[8:15], 30)
    choices = [make_request(PROMPT[:7], 30, choice=choice) for choice in range(4)]
    assert run.generate(other, *choices)[1:] == [expected_output(PROMPT[:7], 30, 256)] * 4
    assert run.engine.stats().preemptions > 0


def test_lower_priority_numbers_run_first() -> None:
    run, runner = make(max_num_seqs=1)
    late, early, first = (make_request([number], 2, priority=p) for number, p in ((1, 5), (2, 0), (3, -5)))
    run.generate(late, early, first)
    order = list(dict.fromkeys(request_id for step in runner.rows for request_id in step))
    assert order == [first.request_id, early.request_id, late.request_id]


def test_the_highest_priority_number_is_pushed_back_first() -> None:
    """The older one, because it matters less."""
    run, _ = make(num_blocks=14, max_model_len=48)
    older, younger = make_request(PROMPT[:7], 30, priority=1), make_request(PROMPT[8:15], 30, priority=0)
    assert run.generate(older, younger) == [
        expected_output(PROMPT[:7], 30, 256),
        expected_output(PROMPT[8:15], 30, 256),
    ]
    assert older.num_preemptions > 0
    assert younger.num_preemptions == 0
