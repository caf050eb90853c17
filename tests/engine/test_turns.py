import sys

import pytest

from openai_kv.engine.turns import SHORT, USUAL
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from tests.fakes import FakeModelRunner
from tests.harness import Run, Shape, build_engine, fake_runner, make_request

PROMPT = range(10, 20)


class TimedRunner:
    """Notes the switch interval of each step."""

    def __init__(self, inner: FakeModelRunner) -> None:
        self.inner, self.info = inner, inner.info
        self.turns: list[float] = []

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        self.turns.append(sys.getswitchinterval())
        return self.inner.execute_model(scheduled)


def test_turns_are_short_during_a_forward_pass_only() -> None:
    runner = TimedRunner(fake_runner(Shape()))
    Run(build_engine(runner, Shape())).generate(make_request(PROMPT, 3))
    assert runner.turns == pytest.approx([SHORT] * 3)
    assert sys.getswitchinterval() == pytest.approx(USUAL)


def test_a_step_that_fails_leaves_them_as_they_were() -> None:
    runner = TimedRunner(fake_runner(Shape()))
    runner.inner.fail_at = {1}
    run = Run(build_engine(runner, Shape()))
    run.add(make_request(PROMPT, 2))
    with pytest.raises(RuntimeError):
        run.step()
    assert runner.turns == pytest.approx([SHORT])
    assert sys.getswitchinterval() == pytest.approx(USUAL)
