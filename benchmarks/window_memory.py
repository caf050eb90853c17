"""KV memory of one conversation with sliding windows that free it and without, off the storages of both pools.

`python benchmarks/window_memory.py --model model.gguf --context 8192`. A prompt of random tokens is computed and
answered in each; the answers must be equal.
"""

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.record import save
from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.tokenizer import Tokenizer
from tests.harness import Run, Shape, build_engine, make_request

BLOCK_SIZE, CHUNK, ANSWER = 16, 512, 16


@dataclass(frozen=True, slots=True)
class Usage:
    """`nbytes` of the pools; `blocks` and `parts` are the most that the request held of each group at a time."""

    layout: str
    nbytes: int
    blocks: int
    parts: int
    tokens: list[int]

    def __str__(self) -> str:
        return f"{self.layout}: {self.nbytes / 2**20:.1f} MiB, held {self.blocks} blocks and {self.parts} window blocks"


def measure(folder: Path, context: int, layout: str, dtype: str = "auto", tokenizer: Tokenizer | None = None) -> Usage:
    """In pools for just this conversation, as `--num-blocks` makes them."""
    shape = Shape(-(-context // BLOCK_SIZE), BLOCK_SIZE, 1, CHUNK, context)
    settings = RunnerSettings(
        dtype=dtype,
        num_blocks=shape.num_blocks,
        num_hidden_slots=shape.num_hidden_slots,
        max_num_batched_tokens=CHUNK,
        max_num_seqs=1,
        max_model_len=context,
        cache_dir=default_home() / "operators",
        window_layout=layout,
    )
    runner = ModelRunner.load(folder, folder.name, settings)
    run = Run(build_engine(runner, shape, tokenizer=tokenizer, num_window_blocks=runner.num_window_blocks))
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(3, runner.info.vocab_size, (context - ANSWER,), generator=generator).tolist()
    request = make_request(prompt, ANSWER, temperature=0.0, ignore_eos=True)
    run.add(request)
    blocks = parts = 0
    while run.engine.has_work:
        run.step()
        cache = run.engine.stats().cache
        blocks, parts = max(blocks, cache.referenced), max(parts, cache.window.referenced if cache.window else 0)
    nbytes = runner.kv_pool.nbytes + (runner.window_pool.nbytes if runner.window_pool else 0)
    return Usage(layout, nbytes, blocks, parts, run.tokens(request))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    tokenizer = Tokenizer.load(folder)
    full, windowed = (measure(folder, args.context, layout, args.dtype, tokenizer) for layout in ("full", "auto"))
    print(full, windowed, f"{windowed.nbytes / full.nbytes:.1%}", sep="\n")
    print("answers are equal" if full.tokens == windowed.tokens else "answers differ")
    if args.json:
        save(args.json, [asdict(full), asdict(windowed)])


if __name__ == "__main__":
    main()
