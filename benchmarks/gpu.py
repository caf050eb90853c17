"""Is the CUDA path right, and how fast is it? python benchmarks/gpu.py [--json FILE] [--shape 8b] [--dry-run]

Holds the kernels against `sdpa` (block sizes 1 to 256, head sizes 64 to 256, float32 and bfloat16) and greedy tokens
against transformers' eager forward, and counts how often a step waits for the GPU. Then measures decode steps at batch
1 to 256 (tokens/s, and at what fraction of the memory's bandwidth they read) with and without CUDA graphs, prompts of
512 to 8,192 tokens, and whole batches beside transformers' continuous batching. Weights are random, nothing is
downloaded. What can't start within `--seconds` is left out and named. The exit code is 1 if a check failed.
`TRITON_INTERPRET=1 python benchmarks/gpu.py --dry-run`: all of it small, on the CPU; its numbers mean nothing.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_flash_attn_2_available

from benchmarks.gpu_checks import NEAR_TIE, check_kernels, check_tokens, count_waits
from benchmarks.gpu_plan import Plan, Report, dry_plan
from benchmarks.gpu_speed import memory_bandwidth, time_decode, time_generate, time_prefill, time_transformers
from benchmarks.gpu_subject import SHAPES, blocks_for, make_runner, random_model, random_prompts
from openai_kv.errors import ConfigError
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.select import select_backend


def backends(device: torch.device) -> Iterator[AttentionBackend]:
    """Those of varlen, triton and sdpa that run here; the first is what `auto` takes on CUDA."""
    for name in ("varlen", "triton", "sdpa"):
        try:
            yield select_backend(name, device)
        except ConfigError as error:
            print(error, flush=True)


def run(plan: Plan, report: Report) -> None:
    report.add("machine", partial(machine, plan.device))
    found = list(backends(plan.device))
    for backend in found[:-1]:
        check = partial(check_kernels, backend, plan.device, plan.shapes)
        report.add(f"kernels {backend.name}", check)
    for dtype in (torch.float32, torch.bfloat16):
        report.add(f"tokens {dtype}", partial(tokens, plan, found[0], dtype))
    report.add("bandwidth", partial(memory_bandwidth, plan.device, plan.read_bytes))
    model = random_model(plan.shape, plan.dtype, plan.device)
    for backend, graphs in variants(found):
        name = f"{backend.name}{' + graphs' if graphs else ''}"
        bandwidth = report.sections.get("bandwidth", float("nan"))
        report.add(f"speed {name}", partial(speed, plan, model, backend, graphs, bandwidth))
    for batch in plan.batches:
        report.add(f"transformers {batch}", partial(beside, plan, model, batch))


def variants(found: Sequence[AttentionBackend]) -> Iterator[tuple[AttentionBackend, bool]]:
    """The one that `auto` takes first."""
    for backend in found:
        if backend.replayable:
            yield backend, True
        yield backend, False


def machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__, "cuda": torch.version.cuda}
    return {"device": name, "python": platform.python_version(), **versions}


def tokens(plan: Plan, backend: AttentionBackend, dtype: torch.dtype) -> dict[str, Any]:
    """Of a model with an eager twin; recorded steps, as many requests as leave a bucket partly filled."""
    model, reference = (random_model(plan.checked, dtype, plan.device) for _ in range(2))
    reference.set_attn_implementation("eager")
    prompts = random_prompts(3, plan.prompt, int(model.config.vocab_size))
    runner = make_runner(model, backend, blocks_for(3, plan.prompt + plan.output), 4, graphs=True)
    return check_tokens(runner, reference, prompts, plan.output)


def speed(
    plan: Plan, model: PreTrainedModel, backend: AttentionBackend, graphs: bool, bandwidth: float
) -> dict[str, Any]:
    most = max(plan.batches)
    longest = max(plan.context + 1, plan.prompt + plan.output)
    num_blocks = max(blocks_for(most, longest), blocks_for(1, max(plan.prefills)))
    runner = make_runner(model, backend, num_blocks, most, graphs=graphs)
    return {
        "decode": [asdict(time_decode(runner, batch, plan.context, plan.steps, bandwidth)) for batch in plan.batches],
        "prefill": {length: time_prefill(runner, length, plan.steps // 10 + 1) for length in plan.prefills},
        "output tokens/s": {batch: time_generate(runner, batch, plan.prompt, plan.output) for batch in plan.batches},
        "waits": count_waits(runner, most, plan.context),
    }


def beside(plan: Plan, model: PreTrainedModel, batch: int) -> float:
    model.set_attn_implementation("flash_attention_2" if is_flash_attn_2_available() else "sdpa")
    return time_transformers(model, batch, plan.prompt, plan.output, plan.peer_blocks)


def failures(report: Report) -> list[str]:
    """Checks that ran and did not hold, and sections that broke off. bfloat16 tokens may differ: they are only told."""
    kernels = [entry for name, entries in report.sections.items() if name.startswith("kernels") for entry in entries]
    failed = [f"kernel: {entry}" for entry in kernels if not entry["ok"]]
    exact = report.sections.get(f"tokens {torch.float32}")
    if exact is not None and not exact["worst_gap"] < NEAR_TIE:
        failed.append(f"tokens: {exact}")
    return failed + report.problems


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all results there")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b", help="of the model whose speed is measured")
    parser.add_argument("--seconds", type=float, default=540, help="no section starts later than that")
    parser.add_argument(
        "--dry-run", action="store_true", help="on the CPU; needs TRITON_INTERPRET=1 in the environment"
    )
    args = parser.parse_args(arguments)
    if args.dry_run and os.environ.get("TRITON_INTERPRET") != "1":
        parser.error("--dry-run: TRITON_INTERPRET=1 has to be set, before Python starts")
    return args


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse(arguments)
    plan = dry_plan() if args.dry_run else Plan(torch.device("cuda"), shape=args.shape)
    report = Report(time.monotonic() + args.seconds)
    run(plan, report)
    problems = failures(report)
    if args.json:
        args.json.write_text(json.dumps({**report.sections, "problems": problems}, indent=1) + "\n", encoding="utf-8")
    print("\n".join(problems) or "all checks hold")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
