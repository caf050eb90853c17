"""A decode step over pools of different formats: python benchmarks/kv_decode.py [--context 8000 --batch 8]

All formats share the weights and are measured in turns in one run, so that whatever else the machine does hits all.
Prints median milliseconds, the median of the ratio to the first format turn by turn (above 1: faster than it), and the
bytes of K and V that a step reads. Pools hold noise: what was never written would be read from one page of zeros.
"""

import argparse
import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.context_cost import milliseconds
from benchmarks.steps import BLOCK_SIZE, Workload
from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.choice import brgemm_rows
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.model_runner.loader import load_model
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings


@dataclass(frozen=True, slots=True)
class Row:
    kv_cache_dtype: str
    pool_bytes: int
    read_bytes: int
    milliseconds: float
    speedup: float


def load(folder: Path, formats: list[str], num_blocks: int) -> list[ModelRunner]:
    """One set of weights, a pool for each format."""
    device = torch.device("cpu")
    backend = select_backend("cpu", device, default_home() / "operators")
    model = optimize(load_model(folder, dtype="bfloat16", device=device), brgemm_rows())
    settings = [RunnerSettings(block_size=BLOCK_SIZE, num_blocks=num_blocks, kv_cache_dtype=name) for name in formats]
    runners = [ModelRunner(model, backend, name, each) for name, each in zip(formats, settings, strict=True)]
    for runner in runners:
        fill(runner.kv_pool)
    return runners


def fill(pool: KVPool) -> None:
    for tensor in pool.tensors:
        if tensor.is_floating_point():
            tensor.uniform_(0, 0.02)
        else:
            tensor.view(torch.uint8).random_()


def compare(runners: list[ModelRunner], workload: Workload, turns: int) -> list[Row]:
    step = workload.scheduled()
    reads = [runner.execute_model(step).attention_read_bytes for runner in runners]
    rounds = [[milliseconds(lambda: runner.execute_model(step)) for runner in runners] for _ in range(turns)]  # noqa: B023
    times = list(zip(*rounds, strict=True))
    speedups = [statistics.median(first / own for first, own in zip(times[0], each, strict=True)) for each in times]
    medians = map(statistics.median, times)
    rows = zip(runners, reads, medians, speedups, strict=True)
    return [Row(runner.info.kv_cache_dtype, runner.kv_pool.nbytes, *numbers) for runner, *numbers in rows]


def report(rows: list[Row]) -> str:
    head = f"{'KV format':12}{'pool MB':>10}{'read MB':>10}{'ms':>10}{'speedup':>10}"
    lines = [
        f"{row.kv_cache_dtype:12}{row.pool_bytes / 1e6:10.1f}{row.read_bytes / 1e6:10.1f}{row.milliseconds:10.1f}"
        f"{row.speedup:10.2f}"
        for row in rows
    ]
    return "\n".join([head, *lines])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--formats", nargs="+", choices=tuple(FORMATS), default=["bfloat16", "int8", "int8-int4"])
    parser.add_argument("--context", type=int, default=8000, help="tokens before the decoded one [8000]")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    runners = load(folder, args.formats, args.batch * -(-(args.context + 1) // BLOCK_SIZE))
    rows = compare(runners, Workload("decode", args.batch, 1, args.context), args.turns)
    print(f"decode {args.batch} x {args.context}, {args.threads} threads, {args.turns} turns\n{report(rows)}")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
