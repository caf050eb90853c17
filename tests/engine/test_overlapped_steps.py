"""A step is planned while the one before runs: nothing that a client gets is different, whatever happens meanwhile."""

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from openai_kv.default_plugins.h2o import H2OPolicy
from openai_kv.engine.overlapped_steps import OverlappedSteps
from openai_kv.outputs import ModelRunnerOutput, RequestOutput, SchedulerOutput
from openai_kv.request import FinishReason, Request
from tests.engine.test_constraint import GRAMMAR, SCHEMA
from tests.fakes import FakeModelRunner, expected_output
from tests.grammar.grammars import EOS, TOKENIZER
from tests.harness import Run, Shape, build_engine, fake_runner, make_request

PROMPT = list(range(10, 33))
SECONDS = 20


def make(
    shape: Shape | None = None, *, info: dict[str, Any] | None = None, **options: Any
) -> tuple[Run, FakeModelRunner]:
    shape = shape or Shape()
    runner = fake_runner(shape, **(info or {}))
    return Run(build_engine(runner, shape, overlapped=True, **options)), runner


def expected(prompt: Sequence[int], num_tokens: int) -> list[int]:
    return expected_output(prompt, num_tokens, 256)


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Of each step that began whether it was planned while the one before ran."""
    ahead: list[bool] = []
    take = OverlappedSteps._take_ahead

    def noted(steps: OverlappedSteps) -> Any:
        found = take(steps)
        ahead.append(found is not None)
        return found

    monkeypatch.setattr(OverlappedSteps, "_take_ahead", noted)
    yield ahead


def test_all_steps_but_the_first_are_planned_ahead(planned: list[bool]) -> None:
    run, runner = make()
    short, long = make_request(PROMPT, 6), make_request(PROMPT[5:], 9)
    assert run.generate(short, long) == [expected(PROMPT, 6), expected(PROMPT[5:], 9)]
    assert planned == [False, *[True] * 8]
    assert runner.num_rows == len(PROMPT) + 5 + len(PROMPT[5:]) + 8, "no row in vain: the lengths are known before"


class Gate:
    """The model waits at the start of step `step`, until `opened`."""

    def __init__(self, inner: FakeModelRunner, step: int) -> None:
        self.inner, self.info, self._step = inner, inner.info, step
        self.entered, self.opened = threading.Event(), threading.Event()

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        if scheduled.step == self._step:
            self.entered.set()
            assert self.opened.wait(SECONDS), "nobody came while the step ran"
        return self.inner.execute_model(scheduled)


def gated(step: int) -> tuple[Run, Gate]:
    gate = Gate(fake_runner(Shape()), step)
    return Run(build_engine(gate, Shape(), overlapped=True)), gate


def before(owner: Any, name: str, do: Callable[[], object]) -> None:
    method = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        do()
        return method(*arguments)

    setattr(owner, name, call)


def after(owner: Any, name: str, do: Callable[[], object]) -> None:
    method = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        result = method(*arguments)
        do()
        return result

    setattr(owner, name, call)


def test_step_2_is_planned_while_step_1_runs() -> None:
    run, gate = gated(1)
    after(run.engine.scheduler, "plan_after", gate.opened.set)
    assert run.generate(make_request(PROMPT, 4)) == [expected(PROMPT, 4)]


def test_step_1_is_taken_in_while_step_2_runs() -> None:
    run, gate = gated(2)
    before(run.engine.scheduler, "update_from_output", lambda: gate.entered.wait(SECONDS))
    after(run.engine.scheduler, "update_from_output", gate.opened.set)
    assert run.generate(make_request(PROMPT, 4)) == [expected(PROMPT, 4)]


def test_a_text_that_ends_unforeseen_costs_one_row() -> None:
    end = expected(PROMPT, 5)[-1]
    run, runner = make(info={"eos_token_ids": frozenset({end})})
    count = expected(PROMPT, 5).index(end)
    request = make_request(PROMPT, 50)
    (tokens,) = run.generate(request)
    assert tokens == expected(PROMPT, count + 1)
    assert run.finish_reason(request) is FinishReason.STOP
    again = make_request([*PROMPT, *tokens], 0)
    run.generate(again)
    assert run.last(again).cached_tokens == len(PROMPT) + len(tokens) - 1, "what is in vain is not cached"
    assert runner.num_rows == len(PROMPT) + count + 1 + 1, "one in vain, and one for the end of the other prompt"


def test_who_comes_is_in_the_next_step_that_has_not_begun() -> None:
    run, gate = gated(2)
    first, second = make_request(PROMPT, 8), make_request(PROMPT[3:], 8)
    run.add(first)
    run.step()
    assert gate.entered.wait(SECONDS)
    step = run.engine.steps.begin()  # step 2, which waits at the gate; 3 is planned
    run.engine.expect(second.request_id)
    gate.opened.set()
    run.engine.scheduler.update_from_output(step.scheduled, step.output())
    run.add(second)
    run.until_idle()
    assert [set(rows) for rows in gate.inner.rows[1:3]] == [{first.request_id}, {first.request_id, second.request_id}]
    assert list(first.output_token_ids) == expected(PROMPT, 8)
    assert run.tokens(second) == expected(PROMPT[3:], 8)


def test_who_comes_late_is_in_the_step_after() -> None:
    run, gate = gated(2)
    first, second = make_request(PROMPT, 8), make_request(PROMPT[3:], 8)
    run.add(first)
    run.step()
    assert gate.entered.wait(SECONDS)
    run.engine.expect(second.request_id)
    run.add(second)
    gate.opened.set()
    run.until_idle()
    assert [set(rows) for rows in gate.inner.rows[1:3]] == [{first.request_id}, {first.request_id, second.request_id}]
    assert [run.tokens(request) for request in (first, second)] == [expected(PROMPT, 8), expected(PROMPT[3:], 8)]


def test_a_step_that_fails_ends_what_ran_and_what_was_planned_after_it() -> None:
    run, runner = make()
    runner.fail_at = {3}
    failed = [make_request(PROMPT, 20), make_request(PROMPT[4:], 20)]
    run.add(*failed)
    run.step()
    run.step()
    with pytest.raises(RuntimeError, match="step 3"):
        run.step()
    run.take(run.engine.fail_running())
    assert [run.finish_reason(request) for request in failed] == [FinishReason.ERROR] * 2
    assert run.generate(make_request(PROMPT, 8)) == [expected(PROMPT, 8)]


def test_an_abort_between_two_steps() -> None:
    run, _ = make()
    gone, other = make_request(PROMPT, 20), make_request(PROMPT[4:], 20)
    run.add(gone, other)
    for _ in range(4):
        run.step()
    run.take(run.engine.abort(gone.request_id))
    run.until_idle()
    assert run.finish_reason(gone) is FinishReason.ABORT
    assert run.tokens(gone) == expected(PROMPT, 4)
    assert run.tokens(other) == expected(PROMPT[4:], 20)


def test_a_step_that_is_nobodys_may_fail() -> None:
    """All end unforeseen while it runs, and somebody comes: that one has no part in it."""
    run, runner = make(info={"eos_token_ids": frozenset({expected(PROMPT, 3)[-1]})})
    runner.fail_at = {4}
    run.generate(make_request(PROMPT, 50))
    late = make_request(PROMPT[4:], 3)
    assert run.generate(late) == [expected(PROMPT[4:], 3)]
    assert run.finish_reason(late) is FinishReason.LENGTH


def test_all_are_aborted_while_a_step_runs() -> None:
    run, _ = make()
    request = make_request(PROMPT, 20)
    run.add(request)
    run.step()
    run.take(run.engine.abort(request.request_id))
    run.until_idle()
    assert run.generate(make_request(PROMPT, 8)) == [expected(PROMPT, 8)]


def test_log_probabilities_are_those_of_steps_in_turn(planned: list[bool]) -> None:
    run, _ = make()
    in_turn = Run(build_engine(fake_runner(Shape()), Shape()))
    ours, theirs = (make_request(PROMPT, 6, prompt_logprobs=1, logprobs=2) for _ in range(2))
    assert run.generate(ours) == in_turn.generate(theirs)
    assert planned == [False, *[True] * 5]
    assert [told(each) for each in run.outputs[ours.request_id]] == [
        told(each) for each in in_turn.outputs[theirs.request_id]
    ]


def told(output: RequestOutput) -> tuple[object, ...]:
    return output.token_ids, output.text, output.logprobs, output.prompt_logprobs


def test_a_grammar_is_given_each_token_before_it_is_asked_for_the_next(planned: list[bool]) -> None:
    shape = Shape(num_blocks=128, max_model_len=256)
    run, _ = make(shape, info={"vocab_size": 250, "eos_token_ids": frozenset({EOS})})
    request = make_request([1], 200, grammar=GRAMMAR)
    (tokens,) = run.generate(request)
    jsonschema.validate(json.loads(TOKENIZER.decode(tokens)), SCHEMA)
    assert not any(planned)


@pytest.mark.parametrize("options", [{"speculation": "auto"}, {"policy": H2OPolicy()}])
def test_what_needs_the_last_token_is_planned_in_turn(options: dict[str, Any], planned: list[bool]) -> None:
    run, _ = make(**options)
    assert run.generate(make_request(PROMPT, 8)) == [expected(PROMPT, 8)]
    assert not any(planned)


def test_full_seats_are_no_reason_to_wait(planned: list[bool]) -> None:
    run, _ = make(replace(Shape(), max_num_seqs=2))
    prompts = [[number, *PROMPT] for number in range(4)]
    assert run.generate(*(make_request(each, 8) for each in prompts)) == [expected(each, 8) for each in prompts]
    assert sum(planned) == 14, "8 steps for two at a time, each time all but the first"


def test_a_prompt_whose_end_makes_way_for_the_same_in_the_tree() -> None:
    """Its window parts were lost, so all of it is computed again, and what follows goes to the tree's block."""
    shape = replace(Shape(), num_blocks=200, num_window_blocks=24)
    run, _ = make(shape, info={"window": 9, "num_window_layers": 1, "window_block_bytes": 1024})
    run.generate(make_request(PROMPT, 1))
    for number in range(8):
        run.generate(make_request([100 + number] * 30, 2))
    again = make_request(PROMPT, 12)
    assert run.generate(again) == [expected(PROMPT, 12)]
    assert run.last(again).cached_tokens == 0
    assert run.engine.stats().cache.eviction_count == 0, "nothing of it was lost but the window parts"


WILD = Shape(num_blocks=24, block_size=4, max_num_seqs=4, max_num_batched_tokens=24, max_model_len=80)


@pytest.mark.parametrize("window", [0, 9])
@pytest.mark.parametrize("seed", range(12))
def test_a_wild_mix_says_what_it_says_alone(seed: int, window: int, planned: list[bool]) -> None:
    """Tiny pool, chunks, preemption, stop tokens, aborts, and requests that come at any time."""
    chance = random.Random(seed)
    shape = replace(WILD, num_window_blocks=24 if window else 0)
    run, _ = make(shape, info={"window": window, "num_window_layers": 1, "window_block_bytes": 1024} if window else {})
    requests = [wild_request(chance) for _ in range(30)]
    left, aborted = list(requests), set[str]()
    while left or run.engine.has_work:
        if left and chance.random() < 0.3:
            run.engine.expect(left[-1].request_id)
            run.add(left.pop())
        if chance.random() < 0.05 and run.engine.scheduler.running:
            aborted.add(abort_one(run, chance))
        if chance.random() < 0.05:
            run.engine.reset_cache()
        run.step()
        run.engine.check_integrity()
    run.until_idle()
    assert any(planned)
    for request in requests:
        whole, said = expected_until_stop(request), run.tokens(request)
        assert said == (whole[: len(said)] if request.request_id in aborted else whole)


def wild_request(chance: random.Random) -> Request:
    start = [chance.randrange(4)] * chance.choice([3, 8, 13])
    prompt = [*start, *(chance.randrange(256) for _ in range(chance.randrange(1, 20)))]
    stop = tuple(chance.sample(range(256), 16)) if chance.random() < 0.6 else ()
    return make_request(prompt, chance.randrange(1, 30), stop_token_ids=stop)


def abort_one(run: Run, chance: random.Random) -> str:
    request_id: str = chance.choice(run.engine.scheduler.running).request_id
    run.take(run.engine.abort(request_id))
    return request_id


def expected_until_stop(request: Request) -> list[int]:
    whole = expected(request.prompt_token_ids, request.params.max_tokens)
    ends = (index for index, token in enumerate(whole) if token in request.params.stop_token_ids)
    return whole[: next(ends, len(whole)) + 1]
