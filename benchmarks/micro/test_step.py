"""One step of the model: a token for each of 1 to 64 requests with 256 tokens of context."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.micro.conftest import CONTEXT
from benchmarks.steps import Workload
from openai_kv.model_runner.model_runner import ModelRunner


@pytest.mark.parametrize("batch", [1, 8, 32, 64])
def test_decode(benchmark: BenchmarkFixture, runner: ModelRunner, batch: int) -> None:
    step = Workload("decode", batch, 1, CONTEXT).scheduled()
    output = benchmark(runner.execute_model, step)
    benchmark.extra_info["attention_read_bytes"] = output.attention_read_bytes
    assert len(output.sampled_token_ids) == batch
