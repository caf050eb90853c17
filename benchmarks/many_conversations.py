"""More conversations than the pool can hold: python benchmarks/many_conversations.py TEXT [--json FILE]

24 greedy requests, each with 7,984 tokens of the text that no other has, are submitted at once to an engine whose pool
holds 4 of them half answered, in float32: some are preempted, and room for the next comes from evictions. What each
says is held against transformers' own model, alone and without a cache: greedy text is equal if each token is the
likeliest after those before it, so one forward pass over prompt and answer tells. Where it is not, `gap` says by how
much the reference preferred another.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.kv_quality import cut
from benchmarks.record import save
from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import FinishReason, Request
from openai_kv.tokenizer import Tokenizer
from tests.harness import Run, Shape, build_engine, make_request

BLOCK_SIZE, CHUNK = 16, 512


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request; `gap`: the most by which a token lies behind the reference's likeliest, in logits. 0: equal."""

    tokens: int
    finish_reason: FinishReason | None
    preemptions: int
    gap: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Of all of them; `running`: the most at a time, `used`: the most blocks that they held."""

    blocks: int
    steps: int
    running: int
    used: int
    preemptions: int
    evictions: int


def build_run(folder: Path, shape: Shape, tokenizer: Tokenizer | None = None) -> Run:
    settings = RunnerSettings(
        dtype="float32",
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        num_hidden_slots=shape.num_hidden_slots,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_num_seqs=shape.max_num_seqs,
        max_model_len=shape.max_model_len,
        cache_dir=default_home() / "operators",
    )
    runner = ModelRunner.load(folder, folder.name, settings)
    return Run(build_engine(runner, shape, tokenizer=tokenizer, num_window_blocks=runner.num_window_blocks))


def load_reference(folder: Path) -> PreTrainedModel:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    reference: PreTrainedModel = model.eval()
    return reference


def serve(run: Run, requests: Sequence[Request]) -> Counts:
    """Until all have ended."""
    steps = running = used = ended = 0
    run.add(*requests)
    while run.engine.has_work:
        run.step()
        stats, steps = run.engine.stats(), steps + 1
        running, used = max(running, stats.running), max(used, stats.cache.referenced)
        before, ended = ended, sum(request.finish_reason is not None for request in requests)
        if ended > before:
            print(f"  {ended} of {len(requests)} ended after {steps} steps", end="\r", flush=True)
    run.engine.check_integrity()
    return Counts(stats.cache.total, steps, running, used, stats.preemptions, stats.cache.eviction_count)


@torch.inference_mode()
def judge(reference: PreTrainedModel, request: Request) -> Outcome:
    """Teacher-forced."""
    tokens = torch.tensor(request.token_ids)
    said = tokens[request.num_prompt_tokens :]
    logits = reference(tokens[None, :-1], use_cache=False, logits_to_keep=len(said)).logits[0].float()
    behind = logits.amax(-1) - logits.gather(1, said[:, None])[:, 0]
    return Outcome(len(said), request.finish_reason, request.num_preemptions, float(behind.max()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="a file")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    parser.add_argument("--conversations", type=int, default=24)
    parser.add_argument("--prompt", type=int, default=7984, help="tokens of each [7984]")
    parser.add_argument("--answer", type=int, default=112, help="tokens of each [112]")
    parser.add_argument("--fit", type=int, default=4, help="how many of them, half answered, fill the pool [4]")
    parser.add_argument("--judged", type=int, metavar="N", help="hold only the first N against the reference [all]")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = parse()
    folder = model_store.resolve(args.model, home=default_home(), progress=print)
    tokenizer = Tokenizer.load(folder)
    tokens = tokenizer.encode(args.text.read_text(encoding="utf-8"), add_special_tokens=False)
    prompts = cut(tokens, args.prompt, args.conversations, leading=tokenizer.encode(""))
    blocks = args.fit * -(-(args.prompt + args.answer // 2) // BLOCK_SIZE)
    run = build_run(folder, Shape(blocks, BLOCK_SIZE, len(prompts), CHUNK, args.prompt + args.answer), tokenizer)
    reference = load_reference(folder)
    requests = [make_request(prompt, args.answer, temperature=0.0, ignore_eos=True) for prompt in prompts]
    print(counts := serve(run, requests))
    outcomes = []
    for request in requests[: args.judged]:
        outcomes.append(judge(reference, request))
        print(outcomes[-1], flush=True)
        if args.json:
            record = {"counts": asdict(counts), "conversations": [asdict(each) for each in outcomes]}
            save(args.json, record)
    print(f"{sum(each.gap == 0 for each in outcomes)} of {len(outcomes)} are equal")


if __name__ == "__main__":
    main()
