"""Perplexity of a text as loaded, optimized and quantized: python benchmarks/perplexity.py TEXT [--model DIR]

The text is cut into windows of `--context` tokens, and the second half of each counts, given the first. llama.cpp's
perplexity does the same, but leaves out the first token of that half: `--given 257` counts just what it counts. The
same tokens count for all variants, so `difference` (of the mean negative log likelihood to the first variant's) has a
standard error of its own, much smaller than that of the perplexity. `divergence` is the mean Kullback-Leibler
divergence from the first variant's distribution, `same first` how often both find the same token the likeliest.
"""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.attention.interface import PagedStep
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import SamplingParams
from openai_kv.tokenizer import Tokenizer

BLOCK_SIZE = 16
VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32", "optimize": False},
    "bfloat16": {"dtype": "bfloat16", "optimize": False},
    "optimized": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}


@dataclass(frozen=True, slots=True)
class Scores:
    """Of each token that counts: its negative log likelihood, and how the distribution it comes from differs."""

    losses: Tensor
    divergences: Tensor  # Kullback-Leibler, from the first variant's distribution
    agrees: Tensor  # whether both find the same token the likeliest

    @classmethod
    def of(cls, logits: Tensor, reference: Tensor, tokens: Tensor) -> "Scores":
        """logits and reference [n, vocab_size], tokens [n]"""
        logs, expected = logits.log_softmax(-1), reference.log_softmax(-1)
        return cls(
            -logs.gather(1, tokens[:, None])[:, 0],
            kl_div(logs, expected, reduction="none", log_target=True).sum(-1),
            (logits.argmax(-1) == reference.argmax(-1)).float(),
        )


def logits_of(runner: ModelRunner, window: list[int], given: int) -> Tensor:
    """What predicts the window's tokens from `given` on, [len(window) - given, vocab_size] in float32."""
    table = range(-(-len(window) // BLOCK_SIZE))
    request = ScheduledRequest("text", window, 0, table, False, SamplingParams(max_tokens=1), 0, window, ())
    batch = InputBatch.build([request], BLOCK_SIZE, runner.device)
    step = PagedStep(runner.backend, runner.kv_pool, batch.metadata)
    states = runner.model.hidden_states(batch.token_ids, batch.positions, step)
    return runner.model.logits(states[given - 1 : -1]).float()


@torch.inference_mode()
def compare(runners: list[ModelRunner], windows: list[list[int]], given: int) -> Iterator[list[Scores]]:
    """By window and runner; the first runner is the one that all are compared with."""
    for window in windows:
        logits = [logits_of(runner, window, given) for runner in runners]
        tokens = torch.tensor(window[given:])
        yield [Scores.of(each, logits[0], tokens) for each in logits]


def load(folder: Path, name: str, context: int) -> ModelRunner:
    return ModelRunner.load(folder, name, RunnerSettings(num_blocks=-(-context // BLOCK_SIZE), **VARIANTS[name]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("text", type=Path, help="a file")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument("--given", type=int, help="how many of them do not count; half of them if not said")
    parser.add_argument("--windows", type=int, default=100, help="how many, from the text's start")
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), default=tuple(VARIANTS))
    return parser.parse_args()


def main() -> None:
    args = parse()
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    tokens = Tokenizer.load(folder).encode(args.text.read_text(encoding="utf-8"))
    starts = range(0, min(len(tokens) - args.context + 1, args.windows * args.context), args.context)
    windows = [list(tokens[start : start + args.context]) for start in starts]
    print(f"{len(windows)} windows of {args.context} tokens")
    print(f"{'':12}{'perplexity':>12}{'difference':>13}{'+-':>9}{'divergence':>12}{'same first':>12}")
    runners = [load(folder, name, args.context) for name in args.variants]
    by_variant = list(zip(*compare(runners, windows, args.given or args.context // 2), strict=True))
    first = torch.cat([scores.losses for scores in by_variant[0]])
    for name, parts in zip(args.variants, by_variant, strict=True):
        losses = torch.cat([scores.losses for scores in parts])
        apart, error = (losses - first).mean(), (losses - first).std() / math.sqrt(len(losses))
        divergence = torch.cat([scores.divergences for scores in parts]).mean()
        agrees = torch.cat([scores.agrees for scores in parts]).mean()
        print(f"{name:12}{losses.mean().exp():12.4f}{apart:13.5f}{error:9.5f}{divergence:12.5f}{agrees:12.2%}")


if __name__ == "__main__":
    main()
