"""What a KV format costs in quality: python benchmarks/kv_quality.py TEXT [--contexts 2048 8192] [--json FILE]

The text is cut into windows of `--context` tokens, and the second half of each counts, given the first, teacher-forced:
perplexity, KL divergence from the distributions over the first format (in nats), and how often the likeliest token is
the same. All formats see the same windows with the same weights, so differences have intervals of their own: 95 %,
bootstrapped over windows. Bytes a token are those of the pool's tensors, without slots for open blocks. Layers with a
sliding window keep all blocks, as that changes no result.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from benchmarks.kv_scores import Interval, Score, WindowScore, summarize
from benchmarks.record import save
from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.attention.interface import PagedStep
from openai_kv.model_runner.attention.select import BACKENDS, select_backend
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.loader import load_model, resolve_device
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import SamplingParams
from openai_kv.tokenizer import Tokenizer

ROWS = 512  # of a step, as the server computes a prompt on the CPU
LOGIT_ROWS = 128


@torch.inference_mode()
def states(runner: ModelRunner, window: Sequence[int]) -> Tensor:
    """Final hidden states [len(window), hidden_size] of a prompt, computed as the server does."""
    return torch.cat(list(_steps(runner, window)))


def _steps(runner: ModelRunner, window: Sequence[int]) -> Iterator[Tensor]:
    table = range(-(-len(window) // runner.kv_pool.block_size))
    for first in range(0, len(window), ROWS):
        rows = window[first : first + ROWS]
        request = ScheduledRequest("text", rows, first, table, False, SamplingParams(max_tokens=1), 0, window, ())
        batch = InputBatch.build([request], runner.kv_pool.block_size, runner.device)
        step = PagedStep(runner.backend, runner.kv_pool, runner.kv_pool.prepare(batch.metadata))
        yield runner.model.hidden_states(batch.token_ids, batch.positions, step)


@torch.inference_mode()
def score(runner: ModelRunner, found: Sequence[Tensor], targets: Tensor) -> list[WindowScore]:
    """Means over rows of each of `found` against the first, all [n, hidden_size]; targets [n]: what followed them."""
    sums = torch.zeros(len(found), 3, dtype=torch.float64)
    for first in range(0, len(targets), LOGIT_ROWS):
        rows = slice(first, first + LOGIT_ROWS)
        expected, *others = (runner.model.logits(part[rows]).float().log_softmax(-1) for part in found)
        each = [_sums(expected, actual, targets[rows]) for actual in (expected, *others)]
        sums += torch.stack(each).double().cpu()
    return [WindowScore(*row) for row in (sums / len(targets)).tolist()]


def _sums(expected: Tensor, actual: Tensor, targets: Tensor) -> Tensor:
    """Loss, divergence from `expected`, rows with the same likeliest token."""
    loss = cross_entropy(actual, targets, reduction="sum")
    divergence = kl_div(actual, expected, reduction="sum", log_target=True)
    return torch.stack((loss, divergence, (expected.argmax(-1) == actual.argmax(-1)).sum()))


def evaluate(runners: Sequence[ModelRunner], windows: Sequence[Sequence[int]]) -> list[list[WindowScore]]:
    """By window and runner; the first is the reference."""
    scores = []
    for number, window in enumerate(windows, start=1):
        half = len(window) // 2
        targets = torch.tensor(window[half:], device=runners[0].device)
        found = [states(runner, window)[half - 1 : -1] for runner in runners]
        scores.append(score(runners[0], found, targets))
        print(f"  {number} of {len(windows)} windows", end="\r", flush=True)
    return scores


def load(args: argparse.Namespace, folder: Path, context: int) -> list[ModelRunner]:
    """One set of weights, a pool for each format."""
    device = resolve_device("auto")
    model = load_model(folder, dtype=args.dtype, device=device)
    backend = select_backend(args.attention_backend, device, default_home() / "operators")
    sizes: dict[str, Any] = {"block_size": args.block_size, "num_blocks": -(-context // args.block_size)}
    return [
        ModelRunner(model, backend, name, RunnerSettings(kv_cache_dtype=name, window_layout="full", **sizes))
        for name in args.formats
    ]


def cut(tokens: Sequence[int], context: int, count: int, leading: Sequence[int] = ()) -> list[list[int]]:
    """Windows of `context` tokens, of which the first are `leading`."""
    length = context - len(leading)
    starts = range(0, min(len(tokens) - length + 1, count * length), length)
    return [[*leading, *tokens[start : start + length]] for start in starts]


def report(context: int, count: int, scores: Sequence[Score]) -> str:
    head = f"{count} windows of {context} tokens\n{'':11}{'B/token':>8}{'perplexity':>12}{'change %':>23}"
    lines = [f"{head}{'KL, nats':>27}{'same top 1 %':>23}"]
    for row in scores:
        change, kl, top = _show(row.change, 100, 3), _show(row.kl, 1, 5), _show(row.agreement, 100, 2)
        lines.append(f"{row.name:11}{row.token_bytes:8.0f}{row.perplexity:12.4f}{change:>23}{kl:>27}{top:>23}")
    return "\n".join(lines)


def _show(interval: Interval, unit: float, digits: int) -> str:
    middle, low, high = (f"{unit * value:.{digits}f}" for value in (interval.value, interval.low, interval.high))
    return f"{middle} [{low}, {high}]"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a file")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--formats", nargs="+", choices=tuple(FORMATS), default=("bfloat16", "int8", "int8-int4"))
    parser.add_argument("--contexts", nargs="+", type=int, default=(2048,), help="tokens of a window [2048]")
    parser.add_argument("--windows", type=int, default=20, help="how many of each, from the text's start [20]")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--attention-backend", choices=BACKENDS, default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = parse()
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    tokenizer = Tokenizer.load(folder)
    tokens = tokenizer.encode(args.text.read_text(encoding="utf-8"), add_special_tokens=False)
    leading = tokenizer.encode("")  # BOS, where the model wants one
    found = {}
    for context in args.contexts:
        runners, windows = load(args, folder, context), cut(tokens, context, args.windows, leading)
        by_runner = zip(*evaluate(runners, windows), strict=True)
        sizes = [runner.kv_pool.block_bytes / args.block_size for runner in runners]
        reference, *_ = rows = [list(scores) for scores in by_runner]
        named = zip(args.formats, sizes, rows, strict=True)
        found[context] = [summarize(name, size, scores, reference) for name, size, scores in named]
        print(report(context, len(windows), found[context]), flush=True)
        if args.json:
            save(args.json, {context: [asdict(row) for row in rows] for context, rows in found.items()})


if __name__ == "__main__":
    main()
