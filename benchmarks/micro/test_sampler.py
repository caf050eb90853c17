"""From logits to tokens, for 64 requests at once over a vocabulary of 49,152."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from openai_kv.model_runner.sampler import Sampler, SamplingRow
from openai_kv.request import SamplingParams

BATCH = 64
VOCABULARY = 49_152
KINDS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "penalties": {
        "temperature": 0.8,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
    },
}


def row(seed: int, kind: str) -> SamplingRow:
    prompt = torch.arange(512) * 89 % VOCABULARY
    return SamplingRow(SamplingParams(256, **KINDS[kind]), seed, 128, prompt.tolist(), prompt[:128].tolist())


@pytest.mark.parametrize("kind", list(KINDS))
def test_sample(benchmark: BenchmarkFixture, kind: str) -> None:
    logits = 4 * torch.randn((BATCH, VOCABULARY), generator=torch.Generator().manual_seed(0))
    rows = [row(seed, kind) for seed in range(BATCH)]
    tokens = benchmark(Sampler(frozenset({0})).sample, logits.bfloat16(), rows)
    assert len(tokens) == BATCH
