"""An engine and a tier that take virtual time, both at once: what a request takes is the same at every run."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from openai_kv.cache.demotion import DemotionRule
from openai_kv.engine.engine_thread import SECONDS_BETWEEN_LOOKS
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from openai_kv.tiers.estimates import ComputeSpeed, Line, LoadSpeed
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier_thread import TierThread
from openai_kv.tiers.tiers import Tiers
from tests.fakes import FakeModelRunner, fake_info
from tests.harness import Run, Shape, build_engine, make_request
from tests.tiers.inline import INFO

SHAPE = Shape(num_blocks=320, block_size=16, max_num_batched_tokens=512, max_model_len=4200)
BLOCK_BYTES = 368_640  # in the tier's time; of SmolLM2-135M in bfloat16
SECONDS_A_STEP, SECONDS_A_ROW, SECONDS_A_CONTEXT_TOKEN = 0.015, 0.0005, 1.2e-7


class Time:
    """The engine's `now`, and a tier's thread that runs until then and no further. One of both runs at a time."""

    def __init__(self) -> None:
        self.now = self.tiers_now = self.until = 0.0
        self.stops_at_news = False
        self.thread: threading.Thread | None = None
        self._engines_turn, self._tiers_turn = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self) -> float:
        return self.tiers_now if threading.current_thread() is self.thread else self.now

    def advance(self, seconds: float, *, to_news: bool = False) -> None:
        """In the engine's thread; `to_news`: less, if the tier has some before."""
        self.until, self.stops_at_news = self.now + seconds, to_news
        self._tiers_turn.release()
        self._engines_turn.acquire()
        self.now = self.until

    def sleep(self, seconds: float) -> None:
        """In the tier's thread."""
        end = self.tiers_now + seconds
        while end > self.until:
            self.hand_over()
        self.tiers_now = end

    def hand_over(self) -> None:
        self._engines_turn.release()
        self._tiers_turn.acquire()

    def idle(self) -> None:
        self.tiers_now = self.until
        self.hand_over()

    def wake(self) -> None:
        if self.stops_at_news:
            self.until, self.stops_at_news = self.tiers_now, False
            self.hand_over()


class VirtualThread(TierThread):
    """Takes its turns from `time`."""

    def __init__(self, tier: "SlowTier", time: Time) -> None:
        self._time, self._ends = time, False
        super().__init__(tier, INFO, clock=time)

    def make_thread(self) -> threading.Thread:
        thread = self._time.thread = threading.Thread(target=self._take_turns, daemon=True)
        thread.start()
        return thread

    def _take_turns(self) -> None:
        self._time._tiers_turn.acquire()
        while not self._ends:
            if self._reads or self._writes.qsize():
                self.run_next()
            else:
                self._time.idle()
        self._time._engines_turn.release()

    def close(self, seconds: float) -> None:
        self._ends = True
        self._time.advance(1e9)
        assert self._thread is not None
        self._thread.join(seconds)


class SlowTier(HostTier):
    """`latency` a call, and its time for every byte."""

    def __init__(self, time: Time) -> None:
        super().__init__(2**31)
        self.latency, self.bytes_a_second = 0.0, float("inf")
        self._time = time

    def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
        self._time.sleep(self.latency)
        return super().contains(keys)

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        self._time.sleep(self.latency + len(keys) * BLOCK_BYTES / self.bytes_a_second)
        return super().get(keys)


class SlowRunner(FakeModelRunner):
    time: Callable[[float], None]

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        rows, seconds = scheduled.num_tokens, 0.0
        if rows:
            row = SECONDS_A_ROW + SECONDS_A_CONTEXT_TOKEN * scheduled.mean_context
            seconds = SECONDS_A_STEP + rows * row
        output = super().execute_model(scheduled)
        self.time(seconds)
        return output


class LoadAll(ComputeSpeed):
    """As if computing took for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Line(1e9)

    def observe(self, rows: int, seconds: float, context: float = 0.0) -> None: ...


@dataclass
class Lab:
    """One engine over one tier."""

    time: Time = field(default_factory=Time)

    def __post_init__(self) -> None:
        info = fake_info(vocab_size=256, eos_token_ids=frozenset({257}), max_model_len=4200)
        runner = SlowRunner(SHAPE.num_blocks, SHAPE.block_size, info)
        runner.time = self.time.advance
        self.tier = SlowTier(self.time)
        self.tiers = Tiers([VirtualThread(self.tier, self.time)], block_bytes=1024, clock=self.time)
        self.tiers.wake = self.time.wake
        self.engine = build_engine(
            runner, SHAPE, tiers=self.tiers, rules=[DemotionRule("write-through")], clock=self.time
        )
        self.run = Run(self.engine)

    def forget_speeds(self) -> None:
        self.tiers.speeds = [LoadSpeed() for _ in self.tiers.speeds]
        self.engine.scheduler._promotion.speed = ComputeSpeed()

    def set_tier(self, megabytes_a_second: float, latency: float) -> None:
        self.tier.bytes_a_second, self.tier.latency = megabytes_a_second * 1e6, latency

    def ttft(self, prompt: Sequence[int], speed: ComputeSpeed | None = None, namespace: str = "") -> float:
        """Virtual seconds to one token, with nothing in the pool; `speed`: what to believe of computing."""
        look = SECONDS_BETWEEN_LOOKS if speed is None else 100.0  # nothing but news would change its mind
        promotion = self.engine.scheduler._promotion
        kept, promotion.speed = promotion.speed, speed or promotion.speed
        self.engine.reset_cache(tiers=("device",))
        asked = make_request(prompt, 1, namespace=namespace)
        begin = self.time.now
        self.run.add(asked)
        while asked.finish_reason is None:
            self.run.step()
            if self.engine.awaits_tiers:
                self.time.advance(look, to_news=True)
        seconds = self.time.now - begin
        self.run.until_idle()
        self.time.advance(1e4)
        promotion.speed = kept
        return seconds
