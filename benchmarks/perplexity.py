"""Perplexity of a text as loaded, optimized and quantized: python benchmarks/perplexity.py TEXT [--model DIR]

The text is cut into windows of `--context` tokens, and the second half of each counts, given the first (as llama.cpp's
perplexity does). The same tokens count for all variants, so `difference` (of the mean negative log likelihood to the
first variant's) has a standard error of its own, much smaller than that of the perplexity.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

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
}


@torch.inference_mode()
def losses(runner: ModelRunner, windows: list[list[int]]) -> Iterator[Tensor]:
    """Per window the negative log likelihoods of the tokens that count."""
    for window in windows:
        table = range(-(-len(window) // BLOCK_SIZE))
        request = ScheduledRequest("text", window, 0, table, False, SamplingParams(max_tokens=1), 0, window, ())
        batch = InputBatch.build([request], BLOCK_SIZE, runner.device)
        states = runner.model.hidden_states(
            batch.token_ids, batch.positions, PagedStep(runner.backend, runner.kv_pool, batch.metadata)
        )
        half = len(window) // 2
        logits = runner.model.logits(states[half - 1 : -1]).float()
        yield cross_entropy(logits, torch.tensor(window[half:]), reduction="none")


def evaluate(folder: Path, name: str, windows: list[list[int]]) -> Tensor:
    blocks = -(-max(map(len, windows)) // BLOCK_SIZE)
    runner = ModelRunner.load(folder, name, RunnerSettings(num_blocks=blocks, **VARIANTS[name]))
    return torch.cat(list(losses(runner, windows)))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("text", type=Path, help="a file")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
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
    print(f"{'':12}{'perplexity':>12}{'difference':>13}{'+-':>9}")
    first: Tensor | None = None
    for name in args.variants:
        found = evaluate(folder, name, windows)
        first = found if first is None else first
        apart = found - first
        error = float(apart.std()) / math.sqrt(len(apart))
        print(f"{name:12}{math.exp(float(found.mean())):12.4f}{float(apart.mean()):13.5f}{error:9.5f}", flush=True)


if __name__ == "__main__":
    main()
