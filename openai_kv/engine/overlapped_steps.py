"""OverlappedSteps: the next step is planned while the model runs, and begins the moment the one before has ended."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from openai_kv.engine.steps import Step, execute
from openai_kv.outputs import ModelRunner, ModelRunnerOutput, SchedulerOutput
from openai_kv.scheduler.scheduler import PlannedStep, Scheduler


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step that is given to the model's thread."""

    scheduled: SchedulerOutput
    output: "Future[ModelRunnerOutput]"


@dataclass(frozen=True, slots=True)
class _Ahead:
    planned: PlannedStep
    output: "Future[ModelRunnerOutput]"


class OverlappedSteps:
    """The model runs in a thread of its own, which takes steps in the order in which they were begun.

    So what a step writes is there for all later ones, be they planned before it has ended or after.
    """

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._model_thread = ThreadPoolExecutor(1, "openai-kv-model")
        self._ahead: _Ahead | None = None
        self._expected: set[str] = set()
        self._lock = Lock()  # around these two: a request is expected by another thread

    def begin(self) -> Step:
        begun = self._go_on() or self._start(self._scheduler.schedule())
        self._plan_after(begun)
        return Step(begun.scheduled, begun.output.result)

    def _go_on(self) -> _Begun | None:
        """With what was planned ahead; a plan whose requests have all ended is nobody's, even if it fails."""
        ahead = self._take_ahead()
        scheduled = None if ahead is None else self._scheduler.begin(ahead.planned)
        return _Begun(scheduled, ahead.output) if ahead and scheduled and scheduled.requests else None

    def _start(self, scheduled: SchedulerOutput) -> _Begun:
        return _Begun(scheduled, self._model_thread.submit(execute, self._runner, scheduled))

    def _plan_after(self, running: _Begun) -> None:
        planned = self._scheduler.plan_after(running.scheduled)
        with self._lock:
            if planned is not None and not self._expected:
                output = self._model_thread.submit(self._follow, planned, running.output)
                self._ahead = _Ahead(planned, output)

    def _take_ahead(self) -> _Ahead | None:
        with self._lock:
            ahead, self._ahead = self._ahead, None
        return ahead

    def _follow(self, planned: PlannedStep, before: "Future[ModelRunnerOutput]") -> ModelRunnerOutput:
        """In the model's thread, where `before` has ended by now."""
        return execute(self._runner, planned.filled(before.result()))

    def expect(self, request_id: str) -> None:
        with self._lock:
            self._expected.add(request_id)
            if self._ahead is not None and self._ahead.output.cancel():
                self._ahead = None

    def arrived(self, request_id: str) -> None:
        with self._lock:
            self._expected.discard(request_id)

    def drop(self) -> None:
        self._take_ahead()

    def close(self) -> None:
        self._model_thread.shutdown()
