"""Models with random weights to measure a GPU with (nothing is downloaded), and requests driven through a runner."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.interface import IMPLEMENTATION, register
from openai_kv.model_runner.graphs import CudaRecorder, Record, Recording
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import ScheduledRequest, SchedulerOutput
from openai_kv.request import SamplingParams

BLOCK_SIZE = 16
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
# hidden, intermediate, layers, heads, K/V heads, vocabulary: of Llama-like models of that size
SHAPES = {
    "tiny": (64, 96, 2, 4, 2, 512),
    "135m": (576, 1536, 30, 9, 3, 49_152),
    "1b": (2048, 8192, 16, 32, 8, 128_256),
    "8b": (4096, 14_336, 32, 32, 8, 128_256),
}


def random_model(shape: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    hidden, intermediate, layers, heads, kv_heads, vocabulary = SHAPES[shape]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocabulary,
        max_position_embeddings=16_384,
        initializer_range=1.5 * hidden**-0.5,  # attention far from uniform, and logits apart
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return cast(PreTrainedModel, model.eval())


def make_runner(
    model: PreTrainedModel, backend: AttentionBackend, num_blocks: int, max_num_seqs: int, *, graphs: bool
) -> ModelRunner:
    """`graphs`: with recorded decode steps; on the CPU what is replayed is the function."""
    register()
    model.set_attn_implementation(IMPLEMENTATION)
    settings = RunnerSettings(
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=2048,
        max_model_len=min(num_blocks * BLOCK_SIZE, 16_384),
    )
    record: Record | None = CudaRecorder() if model.device.type == "cuda" else again
    return ModelRunner(CausalLM.wrap(model), backend, "random", settings, record if graphs else None)


def again(work: Callable[[], Tensor]) -> Recording:
    output = work()
    return Recording(lambda: cast(None, output.copy_(work())), output)


def random_prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for _ in range(count)]


def blocks_for(requests: int, tokens: int) -> int:
    return requests * -(-tokens // BLOCK_SIZE)


def generate(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], num_tokens: int, budget: int = 2048
) -> list[list[int]]:
    """Greedy, all together: prompts in steps of about `budget` tokens, then a token of each in every step."""
    room = blocks_for(1, len(prompts[0]) + num_tokens)
    tables = [range(number * room, (number + 1) * room) for number in range(len(prompts))]
    outputs: list[list[int]] = [[] for _ in prompts]
    at_once = max(1, budget // len(prompts[0]))
    rows = partial(_rows, prompts, outputs, tables)
    for start in range(0, len(prompts), at_once):
        _step(runner, [rows(number) for number in range(start, min(start + at_once, len(prompts)))], outputs)
    for _ in range(num_tokens - 1):
        _step(runner, [rows(number) for number in range(len(prompts))], outputs)
    return outputs


def _rows(
    prompts: Sequence[Sequence[int]], outputs: Sequence[list[int]], tables: Sequence[range], number: int
) -> ScheduledRequest:
    prompt, output = prompts[number], outputs[number]
    tokens = [output[-1]] if output else prompt
    computed = len(prompt) + len(output) - len(tokens)
    return ScheduledRequest(str(number), tokens, computed, tables[number], True, GREEDY, 0, prompt, output)


def _step(runner: ModelRunner, requests: Sequence[ScheduledRequest], outputs: Sequence[list[int]]) -> None:
    sampled = runner.execute_model(SchedulerOutput(1, tuple(requests))).sampled_token_ids
    for name, tokens in sampled.items():
        outputs[int(name)].extend(tokens)
