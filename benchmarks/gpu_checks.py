"""Is what a GPU computes right: kernels against `sdpa`, tokens against transformers' eager forward, waits per step."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from benchmarks.gpu_subject import generate
from benchmarks.steps import Workload
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.trial import TOLERANCES, Shape, disagreement, options_of
from openai_kv.model_runner.model_runner import ModelRunner

NEAR_TIE = 1e-3  # of logits: below it either token is right


def check_kernels(backend: AttentionBackend, device: torch.device, shapes: Sequence[Shape]) -> list[dict[str, Any]]:
    """One entry per shape and type: the largest difference from `sdpa` over all options of a layer."""
    return [
        _held(backend, device, shape, dtype, tolerance) for shape in shapes for dtype, tolerance in TOLERANCES.items()
    ]


def _held(
    backend: AttentionBackend, device: torch.device, shape: Shape, dtype: torch.dtype, tolerance: float
) -> dict[str, Any]:
    options = options_of(shape.head_dim, device)
    found = max(disagreement(backend, device, shape, dtype, option) for option in options)
    sizes = {"block_size": shape.block_size, "head_dim": shape.head_dim, "dtype": str(dtype)}
    return {**sizes, "difference": found, "ok": found < tolerance}


def check_tokens(
    runner: ModelRunner, reference: PreTrainedModel, prompts: Sequence[Sequence[int]], num_tokens: int
) -> dict[str, Any]:
    """Greedy tokens of all prompts together against the logits of `reference`, eager and one prompt at a time.

    `worst_gap`: by how much, in logits, the reference likes a token of its own better than ours, at most.
    """
    ours = generate(runner, prompts, num_tokens)
    gaps = []
    for prompt, tokens in zip(prompts, ours, strict=True):
        logits = _eager_logits(reference, [*prompt, *tokens])[len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
        gaps += (logits.max(1).values - chosen).tolist()
    worst = max(gaps)
    equal = sum(gap == 0 for gap in gaps)
    return {"dtype": str(reference.dtype), "tokens": len(gaps), "equal": equal, "worst_gap": worst}


@torch.inference_mode()
def _eager_logits(model: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """[len(tokens), vocab_size] float32. Teacher-forced, so one difference doesn't make all that follow differ."""
    ids = torch.tensor([list(tokens)], device=model.device)
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
    return logits


def count_waits(runner: ModelRunner, batch: int, context: int) -> int | None:
    """How often the host waited for the GPU in one decode step, by CUDA's own count; None on the CPU."""
    if runner.device.type != "cuda":
        return None
    step = Workload("decode", batch, 1, context).scheduled()
    runner.execute_model(step)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runner.execute_model(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing" in str(warning.message) for warning in caught)
