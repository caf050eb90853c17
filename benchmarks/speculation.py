"""Tokens a second with and without guessing ahead: python benchmarks/speculation.py [--model DIR] [--rounds 3]

Two engines in one process run each workload in turns, A B A B, each with a cache of its own. Prints for each workload
and batch size the medians of tokens a second and of their ratio (above 1: speculation is faster), its extremes, and of
the last round the share of the drafts that were right, and rows and tokens a step. `--speculation off` compares an
engine with its twin: that is how far the machine alone drives two equal ones apart. With `--threads 1` seconds are CPU
time, which a busy machine stretches less.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from benchmarks.serving import words
from openai_kv import model_store
from openai_kv.cache.manager import KVCacheManager
from openai_kv.config import default_home
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.drafting.drafter import Drafter
from openai_kv.drafting.sources import sources_of
from openai_kv.drafting.step_costs import StepCosts
from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.engine.engine import Engine
from openai_kv.engine.reporter import Reporter
from openai_kv.exporting import ExporterGroup
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.model_runner.step_times import measure_steps
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from openai_kv.request import Request, RequestInfo, SamplingParams
from openai_kv.scheduler.scheduler import Scheduler, SchedulerLimits
from openai_kv.tokenizer import Tokenizer

MAX_ROWS, MAX_SEQS, NUM_BLOCKS = 512, 64, 2048
NEW_TOKENS = 128
NAMES = ("Elmsworth", "Harrow", "Tilbury", "Marlow", "Kendal", "Whitby", "Ludlow", "Penrith", "Selby", "Ripon")
PASSAGE = (
    "The harbour town of {name} has {a} fishing boats and {b} warehouses along its northern quay. Every morning the "
    "boats leave at {a} minutes past five, and the bakery on Crane Street opens its shutters a little later. The "
    "council of {name} decided to rebuild the old lighthouse, which had stood empty for {b} years. The first keeper "
    "was a retired teacher named Agnes Morrow, who wrote down the weather every evening in a green notebook."
)


class CountingRunner:
    """A runner that takes down what it is asked for."""

    def __init__(self, runner: ModelRunner) -> None:
        self.info = runner.info
        self._runner = runner
        self.reset()

    def reset(self) -> None:
        self.steps = self.rows = self.drafts = self.right = 0

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        output = self._runner.execute_model(scheduled)
        decoding = [item for item in scheduled.requests if item.output_token_ids]
        self.steps += bool(decoding)
        self.rows += sum(len(item.token_ids) for item in decoding)
        self.drafts += sum(item.num_drafts for item in decoding)
        self.right += sum(len(output.sampled_token_ids[item.request_id]) - 1 for item in decoding)
        return output


@dataclass(frozen=True, slots=True)
class Side:
    engine: Engine
    runner: CountingRunner
    tokenizer: Tokenizer
    clock: Callable[[], float]

    def speed(self, prompts: Sequence[str], name: str) -> float:
        """Tokens a second over all prompts at once, from the first step to the last."""
        requests = [self._request(prompt, f"{name} {number}") for number, prompt in enumerate(prompts)]
        start = self.clock()
        for request in requests:
            self.engine.add(request)
        while self.engine.has_work:
            self.engine.step()
        return sum(request.num_output_tokens for request in requests) / (self.clock() - start)

    def _request(self, prompt: str, name: str) -> Request:
        tokens = tuple(self.tokenizer.render_chat([{"role": "user", "content": prompt}], add_generation_prompt=True))
        params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True)
        return Request(RequestInfo(name, len(tokens)), tokens, params, time.monotonic())


def random_words(seed: int) -> str:
    """Of the peers' load generator, in kind."""
    return words(100, seed)


def copy_edit(seed: int) -> str:
    rng = random.Random(seed)
    passage = PASSAGE.format(name=rng.choice(NAMES), a=rng.randint(11, 59), b=rng.randint(11, 59))
    return f"Correct the spelling of this text. Repeat it in full, word for word.\n\n{passage}"


@dataclass(frozen=True, slots=True)
class Workload:
    """`warm`: the same prompts were answered before."""

    name: str
    prompt: Callable[[int], str]
    warm: bool = False

    def speed(self, side: Side, batch: int, seed: int) -> float:
        prompts = [self.prompt(10**6 * batch + 1000 * seed + number) for number in range(batch)]
        if self.warm:
            side.speed(prompts, f"{self.name} before {seed}")
        side.runner.reset()
        return side.speed(prompts, f"{self.name} {seed}")


WORKLOADS = (
    Workload("random words", random_words),
    Workload("copy-edit", copy_edit),
    Workload("regenerate", random_words, warm=True),
)


def build(runner: ModelRunner, tokenizer: Tokenizer, speculation: str, longest: int) -> Side:
    manager = KVCacheManager(num_blocks=NUM_BLOCKS, block_size=16, policy=LRUPolicy(), num_hidden_slots=256)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    drafter = None
    if speculation != "off":
        costs = StepCosts.of(measure_steps(runner, MAX_ROWS, clock))
        print("ms a step by rows:", {n: round(1e3 * s, 1) for n, s in zip(costs.rows, costs.seconds, strict=True)})
        drafter = Drafter(sources_of(speculation, manager.continuation), costs, longest)
    detokenizer, counting = Detokenizer(tokenizer), CountingRunner(runner)
    limits = SchedulerLimits(MAX_SEQS, MAX_ROWS, runner.info.max_model_len, runner.info.eos_token_ids)
    scheduler = Scheduler(manager, limits, detokenizer, drafter=drafter)
    engine = Engine(scheduler, counting, detokenizer, Reporter(detokenizer, ExporterGroup()))
    return Side(engine, counting, tokenizer, clock)


def compare(workload: Workload, batch: int, sides: Sequence[Side], rounds: int) -> str:
    speeds = [[workload.speed(side, batch, seed) for side in sides] for seed in range(1, rounds + 1)]
    ratios = [on / off for off, on in speeds]
    off, on = (statistics.median(column) for column in zip(*speeds, strict=True))
    last = sides[1].runner
    right = f"{last.right / last.drafts:.0%}" if last.drafts else "-"
    return (
        f"{workload.name:14}{batch:6}{off:9.1f}{on:9.1f}{statistics.median(ratios):8.2f}{min(ratios):7.2f}"
        f"{max(ratios):7.2f}{right:>8}{last.rows / last.steps:8.1f}{batch * (NEW_TOKENS - 1) / last.steps:8.1f}"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--quantization", choices=("none", "int8"), default="none")
    parser.add_argument("--speculation", choices=("off", "ngram", "tree", "auto"), default="auto")
    parser.add_argument("--max-draft-tokens", type=int, default=16)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="run workloads whose name contains this")
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(args.threads)
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    settings = RunnerSettings(num_blocks=NUM_BLOCKS, num_hidden_slots=256, quantization=args.quantization)
    plain, tokenizer = ModelRunner.load(folder, "model", settings), Tokenizer.load(folder)
    twin = ModelRunner(plain.model, plain.backend, "model", settings)  # a pool of its own over the same weights
    sides = [
        build(plain, tokenizer, "off", args.max_draft_tokens),
        build(twin, tokenizer, args.speculation, args.max_draft_tokens),
    ]
    for side in sides:
        side.speed(["warm up"], "warm up")
    print(
        f"{'workload':14}{'batch':>6}{'off':>9}{'on':>9}{'ratio':>8}{'min':>7}{'max':>7}{'right':>8}{'rows':>8}{'tokens':>8}"
    )
    for workload in WORKLOADS:
        for batch in args.batch:
            if args.only in workload.name:
                print(compare(workload, batch, sides, args.rounds), flush=True)


if __name__ == "__main__":
    main()
