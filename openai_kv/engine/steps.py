"""Steps, one after another: planned, then run on the model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from openai_kv.engine.turns import short_turns
from openai_kv.outputs import ModelRunner, ModelRunnerOutput, SchedulerOutput
from openai_kv.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Step:
    """`output` waits for what `scheduled` gives; raises what the model runner raised."""

    scheduled: SchedulerOutput
    output: Callable[[], ModelRunnerOutput]


class Steps(Protocol):
    """Where the engine's next step comes from. All but `expect` in the engine's thread."""

    def begin(self) -> Step: ...

    def expect(self, request_id: str) -> None:
        """A request comes: what is planned without it and has not begun is planned anew. Any thread."""

    def arrived(self, request_id: str) -> None:
        """It is with the scheduler now, or never was expected."""

    def drop(self) -> None:
        """A step failed, and its requests end: what was planned after it is nobody's."""

    def close(self) -> None: ...


class StepsInTurn:
    """A step is planned when the one before has been taken in, and run in the engine's thread."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        self._scheduler = scheduler
        self._runner = runner

    def begin(self) -> Step:
        scheduled = self._scheduler.schedule()
        return Step(scheduled, lambda: execute(self._runner, scheduled))

    def expect(self, request_id: str) -> None:
        """Nothing is planned ahead."""

    def arrived(self, request_id: str) -> None:
        """Nobody waits for it."""

    def drop(self) -> None:
        """Nothing was planned after it."""

    def close(self) -> None:
        """There is no thread."""


def execute(runner: ModelRunner, scheduled: SchedulerOutput) -> ModelRunnerOutput:
    """Meanwhile the event loop delivers the step before."""
    with short_turns():
        return runner.execute_model(scheduled)
