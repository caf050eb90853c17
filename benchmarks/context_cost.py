"""What a token costs by the length of its context, with a cache and without.

    python benchmarks/context_cost.py [--json FILE] [--plot FILE.png FILE.svg]

Times one decode step at contexts of 128 to 8,192 tokens and, for the same contexts, the forward pass over all of it,
which is what a server without a cache runs for every token. Fits a straight line to the decode steps and compares its
slope with the bytes of K and V that a token of context adds, divided by the bandwidth at which plain sums read memory.
Everything is measured in turns; a point is the median over them. With `--threads 1` it counts CPU time, which a busy
machine stretches less.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path

import torch

from benchmarks.context_line import Cost, Line, Point
from benchmarks.context_plot import write_plot
from benchmarks.steps import BLOCK_SIZE, Workload
from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings

CONTEXTS = tuple(2**power for power in range(7, 14))
READ_BYTES = 2**30  # more than any processor's cache holds


def milliseconds(run: Callable[[], object]) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return (clock() - start) * 1e3


def measure(
    runner: ModelRunner, contexts: Sequence[int], turns: int, repeats: int, longest: int, read_bytes: int = READ_BYTES
) -> Cost:
    """`contexts` rise. A turn's decode is the median of `repeats`; contexts above `longest` are not recomputed."""
    jobs: list[Callable[[], float]] = [partial(time_read, torch.ones(read_bytes // 4, device=runner.device))]
    jobs += [partial(time_step, runner, decode(context), repeats) for context in contexts]
    jobs += [partial(time_step, runner, recompute(context), 1) for context in contexts if context <= longest]
    rounds = [[job() for job in jobs] for _ in range(turns)]
    times = [statistics.median(values) for values in zip(*rounds, strict=True)][1:]
    decodes, recomputes = times[: len(contexts)], times[len(contexts) :]
    sizes = [runner.execute_model(decode(context).scheduled()).attention_read_bytes for context in contexts]
    points = tuple(Point(*values) for values in zip_longest(contexts, sizes, decodes, recomputes))
    return summarize(runner, points, turns, read_bytes / min(times[0] for times in rounds) / 1e6)


def summarize(runner: ModelRunner, points: tuple[Point, ...], turns: int, bandwidth_gb_s: float) -> Cost:
    contexts = [point.context for point in points]
    line = Line.fit(contexts, [point.decode_ms for point in points])
    size = Line.fit(contexts, [point.read_bytes for point in points]).slope
    ratio = line.slope / (size / (bandwidth_gb_s * 1e6))
    name, dtype, threads = runner.info.name, runner.info.dtype, torch.get_num_threads()
    return Cost(name, dtype, threads, turns, bandwidth_gb_s, size, line, ratio, points)


def decode(context: int) -> Workload:
    return Workload(f"decode {context}", 1, 1, context - 1)


def recompute(context: int) -> Workload:
    return Workload(f"recompute {context}", 1, context, 0)


def time_step(runner: ModelRunner, workload: Workload, repeats: int) -> float:
    step = workload.scheduled()
    return statistics.median(milliseconds(lambda: runner.execute_model(step)) for _ in range(repeats))


def time_read(buffer: torch.Tensor) -> float:
    return milliseconds(lambda: buffer.sum().item())


def report(cost: Cost) -> str:
    rows = [
        f"{point.context:8}{point.read_bytes / 1e6:12.1f}{point.decode_ms:12.1f}{again(point)}" for point in cost.points
    ]
    return "\n".join(
        [
            f"{cost.model}, {cost.dtype}, {cost.threads} threads, {cost.turns} turns",
            f"{'context':>8}{'MB of K/V':>12}{'decode ms':>12}{'recompute ms':>14}",
            *rows,
            f"decode = {cost.line.intercept:.2f} ms + {1e3 * cost.line.slope:.3f} us a token, R^2 {cost.line.r2:.4f}",
            f"{cost.bytes_per_token:.0f} bytes a token at {cost.bandwidth_gb_s:.1f} GB/s: the slope is "
            f"{cost.slope_ratio:.2f} times what reading them takes",
        ]
    )


def again(point: Point) -> str:
    return f"{'':>14}" if point.recompute_ms is None else f"{point.recompute_ms:14.1f}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--contexts", nargs="+", type=int, default=CONTEXTS, metavar="TOKENS")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10, help="decode steps at each context in a turn [10]")
    parser.add_argument("--recompute-up-to", type=int, default=max(CONTEXTS), metavar="TOKENS")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, nargs="+", default=(), metavar="FILE", help="PNG or SVG")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    num_blocks = -(-max(args.contexts) // BLOCK_SIZE)
    runner = ModelRunner.load(folder, args.model, RunnerSettings(num_blocks=num_blocks))
    cost = measure(runner, sorted(args.contexts), args.turns, args.repeats, args.recompute_up_to)
    print(report(cost))
    if args.json:
        args.json.write_text(json.dumps(asdict(cost), indent=1) + "\n", encoding="utf-8")
    for path in args.plot:
        write_plot(path, cost)


if __name__ == "__main__":
    main()
