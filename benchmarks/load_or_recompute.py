"""Load or recompute: what was chosen, against the better of both: python -m benchmarks.load_or_recompute

TTFT over a grid of prefix lengths and speeds of a tier, which is the host tier made slower. For each the prompt is
computed, loaded whatever that takes, and left to the choice, in turns. Above 1 the choice was slower than the better
of both, below 1 faster, as it does both at once. The choice has its estimates from the turns before.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from benchmarks.record import save
from openai_kv import model_store
from openai_kv.cache.demotion import Demotion, DemotionRule
from openai_kv.cache.manager import KVCacheManager
from openai_kv.config import default_home
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.engine.engine import Engine
from openai_kv.engine.engine_thread import SECONDS_BETWEEN_LOOKS
from openai_kv.engine.reporter import Reporter
from openai_kv.exporting import ExporterGroup
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import Request, RequestInfo, SamplingParams
from openai_kv.scheduler.scheduler import Scheduler, SchedulerLimits
from openai_kv.tiers.codec import record_bytes
from openai_kv.tiers.estimates import ComputeSpeed, Line
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import TierInfo
from openai_kv.tiers.tier_thread import Job, TierThread
from openai_kv.tiers.tiers import Tiers
from openai_kv.tokenizer import Tokenizer

LENGTHS = (64, 128, 256, 512, 1024, 2048)
MEGABYTES_A_SECOND = (4000.0, 1000.0, 200.0, 50.0, 20.0, 10.0)
LATENCY = 0.001
MODES = ("computed", "loaded", "chosen")
NUMBERS = count()


class SlowTier(HostTier):
    """Takes LATENCY a call and its time for every byte."""

    def __init__(self) -> None:
        super().__init__(2**31)
        self.bytes_a_second = 1e12

    def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        found = super().get(keys)
        time.sleep(LATENCY + sum(len(each or b"") for each in found) / self.bytes_a_second)
        return found


class LoadAll(ComputeSpeed):
    """As if computing took for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.row = Line(1e9)

    def observe(self, rows: int, seconds: float, context: float = 0.0) -> None: ...


class Bench:
    """The engine in this thread, as its own thread would run it."""

    def __init__(self, model: str) -> None:
        folder = model_store.resolve(model, home=default_home(), progress=print)
        settings = RunnerSettings(num_blocks=1024, cache_dir=default_home() / "operators")
        runner = ModelRunner.load(folder, model, settings)
        info, size = runner.info, runner.kv_pool.block_size
        self.tier = SlowTier()
        self.threads = (TierThread(self.tier, TierInfo(info.identity, record_bytes(size, info.block_bytes), 1e9)),)
        self.tiers = Tiers(self.threads, block_bytes=info.block_bytes)
        manager = KVCacheManager(
            num_blocks=runner.kv_pool.num_blocks, block_size=size, policy=LRUPolicy(), num_hidden_slots=0,
            demotion=Demotion(info.identity, [DemotionRule("write-through")]),
        )  # fmt: skip
        detokenizer = Detokenizer(Tokenizer.load(folder))
        limits = SchedulerLimits(64, 512, info.max_model_len)
        scheduler = Scheduler(manager, limits, detokenizer, tiers=self.tiers)
        self.engine = Engine(scheduler, runner, detokenizer, Reporter(detokenizer, ExporterGroup()))
        self.news = threading.Event()
        self.engine.wake_with(self.news.set)
        self.speeds = {"computed": ComputeSpeed(), "loaded": LoadAll(), "chosen": ComputeSpeed()}

    def ttft(self, prompt: Sequence[int], mode: str) -> float:
        """Seconds to one token of `prompt` with nothing in the pool; `computed`: with no tier."""
        self.engine.reset_cache(tiers=("device",))
        self.tiers.threads = () if mode == "computed" else self.threads
        self.engine.scheduler._promotion.speed = self.speeds[mode]
        info = RequestInfo(str(next(NUMBERS)), len(prompt))
        request = Request(info, tuple(prompt), SamplingParams(max_tokens=1, temperature=0.0), time.monotonic())
        begin = time.perf_counter()
        self.engine.add(request)
        while request.finish_reason is None:
            self.news.clear()
            self.engine.step()
            if self.engine.awaits_tiers:
                self.news.wait(SECONDS_BETWEEN_LOOKS)
        seconds = time.perf_counter() - begin
        while self.engine.has_work:
            self.engine.step()
        return seconds

    def settle(self) -> None:
        """Wait until everything is stored."""
        stored = threading.Event()
        self.threads[0].write(Job(lambda _: stored.set()))
        stored.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--speeds", type=float, nargs="+", default=MEGABYTES_A_SECOND, help="MB/s")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    bench, rows = Bench(args.model), []
    print("| prompt tokens | tier MB/s | computed ms | loaded ms | chosen ms | chosen / better |")
    print("|---|---|---|---|---|---|")
    for length in args.lengths:
        prompt = [1000 + (number * 7919) % 20000 for number in range(length + 1)]
        bench.tier.bytes_a_second = 1e12
        bench.ttft(prompt, "chosen")
        bench.settle()
        for speed in args.speeds:
            bench.tier.bytes_a_second = speed * 1e6
            times: dict[str, list[float]] = {mode: [] for mode in MODES}
            for turn in range(args.turns + 1):
                for mode in MODES:
                    seconds = bench.ttft(prompt, mode)
                    bench.settle()
                    if turn:
                        times[mode].append(seconds)
            middle = {mode: statistics.median(times[mode]) for mode in MODES}
            ratio = middle["chosen"] / min(middle["computed"], middle["loaded"])
            rows.append({"tokens": length, "mb_per_second": speed, **middle, "ratio": ratio})
            shown = " | ".join(f"{middle[mode] * 1e3:.0f}" for mode in MODES)
            print(f"| {length} | {speed:g} | {shown} | {ratio:.2f} |", flush=True)
    worst = max(rows, key=lambda row: row["ratio"])
    print(f"worst: {worst['ratio']:.2f} at {worst['tokens']} tokens, {worst['mb_per_second']:g} MB/s")
    if args.json is not None:
        save(args.json, rows)
    bench.tiers.threads = bench.threads
    bench.engine.close()


if __name__ == "__main__":
    main()
