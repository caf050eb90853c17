"""A model under a grammar: what it draws is a function of seed and logits, in any company."""

import json
from pathlib import Path

import jsonschema
import pytest
import torch

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.loader import load_model
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import FinishReason, Request
from tests.grammar.grammars import TOKENIZER, of_schema
from tests.harness import Run, Shape, build_engine, make_request
from tests.tiny_models import save_tiny_model

SHAPE = Shape(num_blocks=128, block_size=4, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=128)
SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "sizes": {"type": "array", "items": {"enum": [1, 22]}, "maxItems": 9}},
    "required": ["on", "sizes"],
    "additionalProperties": False,
}
GRAMMAR = of_schema(SCHEMA)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    folder: Path = save_tiny_model("llama", tmp_path_factory.mktemp("llama"))
    model = load_model(folder, dtype="float32", device=torch.device("cpu"))
    settings = RunnerSettings(block_size=SHAPE.block_size, num_blocks=SHAPE.num_blocks, max_model_len=128)
    return ModelRunner(model, select_backend("sdpa", torch.device("cpu")), "llama", settings)


def held(seed: int) -> Request:
    request = make_request([7, 8, 9], 100, grammar=GRAMMAR, temperature=2.0, ignore_eos=True)
    request.seed = seed
    return request


@pytest.mark.usefixtures("one_thread")
def test_seeded_draws_are_the_same_alone_and_in_a_batch_and_always_valid(runner: ModelRunner) -> None:
    def run() -> Run:
        return Run(build_engine(runner, SHAPE, tokenizer=TOKENIZER))

    alone = [run().generate(held(seed))[0] for seed in range(4)]
    free = make_request([5, 6], 60, temperature=1.0)
    batch = [held(seed) for seed in range(4)]
    together = run()
    assert together.generate(free, *batch)[1:] == alone
    assert len(set(map(tuple, alone))) > 1
    for request, tokens in zip(batch, alone, strict=True):
        assert together.finish_reason(request) is FinishReason.STOP
        jsonschema.validate(json.loads(TOKENIZER.decode(tokens)), SCHEMA)


@pytest.mark.usefixtures("one_thread")
def test_a_grammar_wins_over_min_tokens_where_both_leave_nothing(runner: ModelRunner) -> None:
    """`1` is the only token that may come, and one that would end the output."""
    one = TOKENIZER.encode("1")[0]
    request = make_request([7, 8, 9], 20, grammar=of_schema({"const": 1}), min_tokens=20, stop_token_ids=(one,))
    run = Run(build_engine(runner, SHAPE, tokenizer=TOKENIZER))
    assert run.generate(request) == [[one]]
    assert run.finish_reason(request) is FinishReason.STOP
