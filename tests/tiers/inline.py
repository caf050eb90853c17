"""Tiers without threads, and a fake engine over them, so that every count is the same at every run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai_kv.cache.demotion import DemotionRule
from openai_kv.engine.engine import Engine
from openai_kv.tiers.codec import record_bytes
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.estimates import Average, ComputeSpeed, Line
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.tier_thread import Job, TierThread
from openai_kv.tiers.tiers import Tiers
from tests.fakes import FakeModelRunner
from tests.harness import Run, Shape, build_engine, fake_runner

SHAPE = Shape()
INFO = TierInfo("ab" * 32, record_bytes(SHAPE.block_size, 1024), 86400.0)
SECONDS_A_TOKEN = 1.0


class InlineThread(TierThread):
    """Does each job where it is given, or when it is released; a number of jobs may be let through first."""

    held = False
    let_through = 0
    _runs = False

    def make_thread(self) -> None:
        return None

    def read(self, job: Job, *, goes_on: bool = False) -> None:
        super().read(job, goes_on=goes_on)
        self.go_on()

    def write(self, job: Job) -> bool:
        done = super().write(job)
        if done:
            self.go_on()
        return done

    def go_on(self) -> None:
        if not self._runs:
            self._runs = True
            while self._has_jobs and (not self.held or self.let_through):
                self.let_through = max(0, self.let_through - 1)
                self.run_next()
            self._runs = False

    @property
    def _has_jobs(self) -> bool:
        return bool(self._reads) or bool(self._writes.qsize())

    def release(self) -> None:
        self.held = False
        self.go_on()


class FixedSpeed(ComputeSpeed):
    """Not measured, so that a fast machine decides as a slow one."""

    def __init__(self, token: float, step: float) -> None:
        self.row, self.step = Line(token), Average(step, True)

    def observe(self, rows: int, seconds: float, context: float = 0.0) -> None: ...


@dataclass
class Machine:
    """An engine over the fake model and tiers; starting a second one on the same tiers is a restart."""

    tiers: Sequence[CacheTier]
    rules: Sequence[DemotionRule] = (DemotionRule("write-through"),)
    shape: Shape = SHAPE
    info: Mapping[str, Any] = field(default_factory=dict)
    seconds_a_token: float = SECONDS_A_TOKEN
    make_thread: Callable[[CacheTier, TierInfo], TierThread] = InlineThread

    def __post_init__(self) -> None:
        self.runner: FakeModelRunner = fake_runner(self.shape, **self.info)
        info = self.runner.info
        self.threads = [self.make_thread(tier, INFO) for tier in self.tiers]
        self.engine: Engine = build_engine(
            self.runner,
            self.shape,
            tiers=Tiers(self.threads, block_bytes=info.block_bytes, window_block_bytes=info.window_block_bytes),
            rules=self.rules,
        )
        self.engine.scheduler._promotion.speed = FixedSpeed(self.seconds_a_token, self.seconds_a_token)
        self.run = Run(self.engine)

    @property
    def thread(self) -> InlineThread:
        (thread,) = self.threads
        assert isinstance(thread, InlineThread)
        return thread


def disk(folder: object, max_bytes: int = 2**30) -> DiskTier:
    return DiskTier(str(folder), max_bytes)
