"""Watches steps from within: what lies between two forward passes, and when the clients of a step were written to."""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai_kv.engine.engine import Engine
from openai_kv.outputs import ModelRunnerOutput, RequestOutput, SchedulerOutput

Execute = Callable[[SchedulerOutput], ModelRunnerOutput]
Call = Callable[..., Any]


@dataclass(slots=True)
class Step:
    """Times of one step in seconds. `cpu_began` and `cpu_ended`: the engine thread's CPU time around its forward pass.

    `parts`: what came between this pass and the next one. `handed`: when the event loop was told, `sent`: the last
    write of what it was told. `turn`: the interpreter's switch interval.
    """

    rows: int
    turn: float
    began: float = 0.0
    cpu_began: float = 0.0
    ended: float = 0.0
    cpu_ended: float = 0.0
    handed: float = 0.0
    sent: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def begin(self) -> None:
        self.began, self.cpu_began = time.perf_counter(), time.thread_time()

    def end(self) -> None:
        self.ended, self.cpu_ended = time.perf_counter(), time.thread_time()


class StepWatch:
    """`turns`: switch intervals to take in turns, six steps each; none: the server's own."""

    def __init__(self, turns: Sequence[float] = ()) -> None:
        self.steps: list[Step] = []
        self.engine_thread = 0
        self._turns = turns
        self._count = 0

    def engine(self, engine: Engine, execute: Execute) -> None:
        """From the engine's thread: `execute` runs its steps from now on."""
        self.engine_thread = threading.get_ident()
        scheduler: Any = engine.scheduler
        reporter: Any = engine._reporter
        runner: Any = engine.runner
        runner.execute_model = self._executed(execute)
        scheduler.schedule = self.timed("schedule", scheduler.schedule)
        scheduler.update_from_output = self.timed("update", scheduler.update_from_output)
        reporter.report = self.timed("report", reporter.report)

    def timed(self, name: str, function: Call) -> Call:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = function(*arguments)
            if self.steps:
                self.steps[-1].parts[name] += time.perf_counter() - began
            return result

        return call

    def hand_over(self, function: Call) -> Call:
        timed = self.timed("hand over", function)

        def call(engine: object, outputs: Sequence[RequestOutput]) -> None:
            if self.steps:
                self.steps[-1].handed = time.perf_counter()
            timed(engine, outputs)

        return call

    def send(self, function: Call) -> Call:
        async def call(*arguments: Any, **options: Any) -> None:
            await function(*arguments, **options)
            handed = next((step for step in reversed(self.steps[-3:]) if step.handed), None)
            if handed is not None:
                handed.sent = time.perf_counter()

        return call

    def _executed(self, execute: Execute) -> Execute:
        def call(scheduled: SchedulerOutput) -> ModelRunnerOutput:
            step = Step(len(scheduled.requests), self._take_turn())
            self.steps.append(step)
            step.begin()
            output = execute(scheduled)
            step.end()
            return output

        return call

    def _take_turn(self) -> float:
        if self._turns:
            sys.setswitchinterval(self._turns[self._count // 6 % len(self._turns)])
        self._count += 1
        return sys.getswitchinterval()
