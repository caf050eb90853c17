"""One step of a model, optimized against as it was loaded: python benchmarks/steps.py [--model DIR] [--dtype bfloat16]

Both are measured in turns in one run, so that whatever else the machine does hits both. Prints median milliseconds of
each and the median of their ratio, turn by turn (above 1: the optimized one is faster). With `--threads 1` it counts
CPU time, which a busy machine stretches less.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import ScheduledRequest, SchedulerOutput
from openai_kv.request import SamplingParams

BLOCK_SIZE = 16
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Workload:
    """`requests` at once, each with so many rows on top of so much computed context, `shared` tokens of it by all."""

    name: str
    requests: int
    rows: int
    context: int
    shared: int = 0

    def scheduled(self) -> SchedulerOutput:
        return SchedulerOutput(1, tuple(self._request(number) for number in range(self.requests)))

    def _request(self, number: int) -> ScheduledRequest:
        blocks = -(-(self.context + self.rows) // BLOCK_SIZE)
        lead = self.shared // BLOCK_SIZE
        table = [*range(lead), *range(number * blocks + lead, (number + 1) * blocks)]
        tokens = [100 + (number * 7 + row * 13) % 400 for row in range(self.rows)]
        return ScheduledRequest(str(number), tokens, self.context, table, True, GREEDY, 0, tokens, ())


def workloads(context: int, shared: int = 0) -> list[Workload]:
    decode = [Workload(f"decode {batch} x {context}", batch, 1, context, shared) for batch in (1, 2, 4, 8, 16, 32, 64)]
    return [*decode, Workload("prefill 128", 1, 128, 0), Workload("prefill 512", 1, 512, 0)]


def milliseconds(runner: ModelRunner, step: SchedulerOutput, repeats: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    for _ in range(repeats):
        runner.execute_model(step)
    return (clock() - start) * 1e3 / repeats


def compare(runners: Sequence[ModelRunner], step: SchedulerOutput, turns: int) -> list[list[float]]:
    """Milliseconds by runner and turn."""
    repeats = max(1, int(30 / max(milliseconds(runner, step, 2) for runner in runners)))
    rounds = [[milliseconds(runner, step, repeats) for runner in runners] for _ in range(turns)]
    return [list(times) for times in zip(*rounds, strict=True)]


def load(folder: Path, args: argparse.Namespace, optimize: bool) -> ModelRunner:
    num_blocks = 64 * (-(-(args.context + 1) // BLOCK_SIZE))
    quantization = args.quantization if optimize else "none"
    settings = RunnerSettings(dtype=args.dtype, num_blocks=num_blocks, optimize=optimize, quantization=quantization)
    return ModelRunner.load(folder, "model", settings)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--quantization", choices=("none", "int8", "int4"), default="none", help="of the optimized one")
    parser.add_argument("--context", type=int, default=256, help="tokens before a decoded one")
    parser.add_argument("--shared", type=int, default=0, help="tokens of it that all requests have in common")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="run workloads whose name contains this")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    runners = [load(folder, args, optimize=True), load(folder, args, optimize=False)]
    print(f"{torch.get_num_threads()} threads, {runners[0].info.dtype}")
    print(f"{'ms per step':20}{'optimized':>12}{'as loaded':>12}{'ratio':>8}{'min':>8}{'max':>8}")
    for workload in workloads(args.context, args.shared):
        if args.only in workload.name:
            ours, plain = compare(runners, workload.scheduled(), args.turns)
            ratios = [its / our for our, its in zip(ours, plain, strict=True)]
            row = [
                statistics.median(ours),
                statistics.median(plain),
                statistics.median(ratios),
                min(ratios),
                max(ratios),
            ]
            print(
                f"{workload.name:20}{row[0]:12.1f}{row[1]:12.1f}" + "".join(f"{ratio:8.2f}" for ratio in row[2:]),
                flush=True,
            )


if __name__ == "__main__":
    main()
