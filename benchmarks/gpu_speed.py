"""How fast a GPU is: its memory, decode steps and prompts through the runner, and transformers' continuous batching."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from benchmarks.gpu_subject import generate, random_prompts
from benchmarks.steps import Workload
from openai_kv.model_runner.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class Decode:
    """A step of `batch` requests with `context` tokens each; `fraction` of the memory's bandwidth it reads at."""

    batch: int
    context: int
    step_ms: float
    tokens_per_s: float
    read_gb_per_s: float
    fraction: float


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time until the device is done."""
    _finish(device)
    start = time.perf_counter()
    work()
    _finish(device)
    return time.perf_counter() - start


def memory_bandwidth(device: torch.device, num_bytes: int, repeats: int = 5) -> float:
    """Bytes a second at which a sum reads memory, the best of several."""
    numbers = torch.ones(num_bytes // 4, device=device)
    return num_bytes / min(seconds(numbers.sum, device) for _ in range(repeats + 1))


def weight_bytes(model: PreTrainedModel) -> int:
    """Of what a decode step reads: all but the rows of the embedding that it doesn't need."""
    modules: Any = model.get_input_embeddings(), model.get_output_embeddings()
    embedding, head = (module.weight for module in modules)
    return sum(weight.nbytes for weight in model.parameters()) - (0 if head is embedding else int(embedding.nbytes))


def time_decode(runner: ModelRunner, batch: int, context: int, steps: int, bandwidth: float) -> Decode:
    """The same step again and again, sampled greedily, its tokens read back. `bandwidth` in bytes/s."""
    scheduled = Workload("decode", batch, 1, context).scheduled()
    read = weight_bytes(runner.model.model) + runner.execute_model(scheduled).attention_read_bytes
    step = _median(partial(runner.execute_model, scheduled), runner.device, steps)
    return Decode(batch, context, step * 1e3, batch / step, read / step / 1e9, read / step / bandwidth)


def time_prefill(runner: ModelRunner, length: int, repeats: int) -> float:
    """Tokens a second of one prompt in one step."""
    scheduled = Workload("prefill", 1, length, 0).scheduled()
    return length / _median(partial(runner.execute_model, scheduled), runner.device, repeats)


def time_generate(runner: ModelRunner, batch: int, length: int, num_tokens: int) -> float:
    """Output tokens a second of a batch, its prompts included, through the runner."""
    prompts = random_prompts(batch, length, runner.info.vocab_size)
    taken = _median(partial(generate, runner, prompts, num_tokens), runner.device, 1)
    return batch * num_tokens / taken


def time_transformers(
    model: PreTrainedModel, batch: int, length: int, num_tokens: int, num_blocks: int | None
) -> float:
    """The same requests through `generate_batch`, set up by a run before, with what it chooses by itself."""
    prompts = random_prompts(batch, length, int(model.config.vocab_size))
    config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = ContinuousBatchingConfig(num_blocks=num_blocks, max_batch_tokens=num_blocks and 64)
    kept: dict[str, Any] = {"continuous_batching_config": batching, "persistent_manager": True}
    peer: Any = model
    made: list[int] = []

    def run() -> None:
        outputs = peer.generate_batch(prompts, generation_config=config, **kept)
        made.append(sum(len(output.generated_tokens) for output in outputs.values()))

    taken = _median(run, model.device, 1)
    peer.destroy_cached_continuous_batching_manager()
    return made[-1] / taken


def _median(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds, after a run that doesn't count."""
    work()
    return statistics.median(seconds(work, device) for _ in range(repeats))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
