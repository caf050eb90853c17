"""Two servers side by side: python benchmarks/peers.py http://127.0.0.1:8000/v1 http://127.0.0.1:8001/v1 [--json FILE]

Workloads of `openai-kv bench` on A, B, A, B ..., with new prompts in every round. Prints medians, and the median of A's
figure divided by B's, round by round: absolute figures drift where others use the machine, ratios of neighbours less.
benchmarks/peers/ installs and starts other servers to compare with.
"""

import argparse
import asyncio
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from openai_kv.bench.client import Client
from openai_kv.bench.command import IGNORE_EOS, first_model
from openai_kv.bench.drive import run_phase
from openai_kv.bench.report import record
from openai_kv.bench.result import Result
from openai_kv.bench.workloads import WORKLOADS, Phase, Scale
from openai_kv.bench.writer import Writer

TASKS: Mapping[str, tuple[str, Scale]] = {
    "single": ("single", Scale()),
    "batch8": ("batch", Scale(8)),
    "batch32": ("batch", Scale(32)),
    "prefix": ("prefix", Scale(8)),
    "herd": ("herd", Scale(8)),
    "turns": ("turns", Scale(8)),
}
FIGURES = ("output_tokens_per_s", "ttft_p50_ms", "itl_p50_ms", "itl_p99_ms")


@dataclass(frozen=True, slots=True)
class Pair:
    """One phase of one round, on both servers."""

    a: Result
    b: Result


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of A's figure to B's, over the rounds."""

    label: str
    figure: str
    a: float
    b: float
    ratios: tuple[float, ...]

    def line(self) -> str:
        low, middle, high = min(self.ratios), statistics.median(self.ratios), max(self.ratios)
        return f"{self.label:16}{self.figure:22}{self.a:10.1f}{self.b:10.1f}{low:9.2f}{middle:9.2f}{high:9.2f}"


def ratios(pairs: Sequence[Pair]) -> Iterator[Ratio]:
    """Figures that both have, by phase."""
    by_label = defaultdict(list)
    for pair in pairs:
        by_label[pair.a.label].append((record(pair.a), record(pair.b)))
    for label, rows in by_label.items():
        for figure in FIGURES:
            both = [(a[figure], b[figure]) for a, b in rows if a[figure] and b[figure]]
            if both:
                ours, its = (statistics.median(values) for values in zip(*both, strict=True))
                yield Ratio(label, figure, ours, its, tuple(a / b for a, b in both))


async def run(client: Client, phases: Sequence[Phase], number: int) -> list[Result]:
    return [Result(phase.label, number, tuple(await run_phase(client.ask, phase, lambda: None))) for phase in phases]


async def compare(clients: Sequence[Client], args: argparse.Namespace) -> list[Pair]:
    pairs: list[Pair] = []
    for number in range(args.rounds):
        writer = Writer(f"{args.seed}/{number}")
        for task in args.workloads:
            name, scale = TASKS[task]
            phases = list(WORKLOADS[name](writer, scale))
            ours, its = [await run(client, phases, number) for client in clients]
            pairs += [Pair(a, b) for a, b in zip(ours, its, strict=True)]
            print(f"round {number + 1} of {args.rounds}: {task} done", flush=True)
    return pairs


async def measure(args: argparse.Namespace) -> list[Pair]:
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=args.a, timeout=args.timeout, limits=limits) as a,
        httpx.AsyncClient(base_url=args.b, timeout=args.timeout, limits=limits) as b,
    ):
        clients = [Client(http, await first_model(http), IGNORE_EOS) for http in (a, b)]
        for client in clients:
            await client.ask([{"role": "user", "content": "Say hello."}], 4)
        return await compare(clients, args)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", metavar="A", help="base URL, ending in /v1")
    parser.add_argument("b", metavar="B")
    parser.add_argument("--workloads", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", default="0", help="other prompts; a server may have cached these")
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    args = parse()
    pairs = asyncio.run(measure(args))
    print(f"{'':16}{'':22}{'A':>10}{'B':>10}{'A/B min':>9}{'median':>9}{'max':>9}")
    for ratio in ratios(pairs):
        print(ratio.line())
    failed = [error for pair in pairs for result in (pair.a, pair.b) for error in result.errors]
    if args.json:
        rows = [{"a": record(pair.a), "b": record(pair.b)} for pair in pairs]
        args.json.write_text(json.dumps({"a": args.a, "b": args.b, "seed": args.seed, "rounds": rows}) + "\n")
    raise SystemExit(f"{len(failed)} requests failed, first: {failed[0]}" if failed else 0)


if __name__ == "__main__":
    main()
