"""The promises of the README on the real default model, through scheduler, cache and engine."""

from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.default_plugins.h2o import H2OPolicy
from openai_kv.default_plugins.sink_lru import SinkLRUPolicy
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.loader import CausalLM, load_model
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import FinishReason
from openai_kv.tokenizer import Tokenizer
from tests.harness import Run, Shape, build_engine, make_request

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("one_thread")]
SHAPE = Shape(num_blocks=160, block_size=16, max_num_seqs=16, max_num_batched_tokens=512, max_model_len=2048)


@pytest.fixture(scope="module")
def model(default_model: Path) -> CausalLM:
    return load_model(default_model)


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return Tokenizer.load(default_model)


def start(model: CausalLM, tokenizer: Tokenizer, shape: Shape = SHAPE, policy: EvictionPolicy | None = None) -> Run:
    settings = RunnerSettings(
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        num_hidden_slots=shape.num_hidden_slots,
        needs_attention=policy is not None and policy.needs_attention,
    )
    runner = ModelRunner(model, select_backend("auto", torch.device("cpu")), "smollm2", settings)
    return Run(build_engine(runner, shape, tokenizer=tokenizer, policy=policy))


def rows_of_the_first_layer(model: PreTrainedModel) -> list[int]:
    rows: list[int] = []
    layer = model.get_submodule("model.layers.0")
    layer._forward_pre_hooks.clear()
    layer.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[1]))
    return rows


def test_the_capital_of_france(model: CausalLM, tokenizer: Tokenizer) -> None:
    run = start(model, tokenizer)
    prompt = tokenizer.render_chat([{"role": "user", "content": "What is the capital of France?"}])
    cold, exact = (make_request(prompt, 16, temperature=0.0) for _ in range(2))
    rows = rows_of_the_first_layer(model.model)
    for request in (cold, exact):
        run.generate(request)
        assert "".join(output.text for output in run.outputs[request.request_id]) == "The capital of France is Paris."
        assert run.finish_reason(request) is FinishReason.STOP
    decoded = run.last(cold).num_output_tokens - 1
    assert sum(rows) == len(prompt) + 2 * decoded, "the repeat ran its decode rows and nothing else"
    assert run.last(exact).cached_tokens == len(prompt)


def test_a_cold_herd_runs_its_prefix_once(model: CausalLM, tokenizer: Tokenizer) -> None:
    run = start(model, tokenizer)
    system = " ".join(f"Rule {number} is to be kind." for number in range(60))
    prompts = [
        tokenizer.render_chat([{"role": "system", "content": system}, {"role": "user", "content": f"Question {n}?"}])
        for n in range(16)
    ]
    shared = next(i for i, column in enumerate(zip(*prompts, strict=False)) if len(set(column)) > 1)
    assert shared > 400
    rows = rows_of_the_first_layer(model.model)
    requests = [make_request(prompt, 2, temperature=0.0, ignore_eos=True) for prompt in prompts]
    run.generate(*requests)
    private = sum(len(prompt) - shared for prompt in prompts)
    assert sum(rows) - 16 <= shared + private + 15 * SHAPE.block_size
    assert sum(run.last(request).cached_tokens for request in requests) >= 15 * (shared - shared % 16)


def test_forty_seven_shared_tokens_with_blocks_of_64(model: CausalLM, tokenizer: Tokenizer) -> None:
    shape = Shape(num_blocks=16, block_size=64, max_num_batched_tokens=512, max_model_len=1024)
    run = start(model, tokenizer, shape)
    shared = list(range(1000, 1047))
    first, second = make_request([*shared, 5, 6], 2), make_request([*shared, 7, 8, 9], 2)
    rows = rows_of_the_first_layer(model.model)
    run.generate(first)
    run.generate(second)
    assert run.last(second).cached_tokens == 47
    assert sum(rows) == 49 + 3 + 2, "two prompts and a decode row each, less what was cached"


def test_a_cached_prefix_is_a_dynamic_cache_of_its_length(model: CausalLM, tokenizer: Tokenizer) -> None:
    """That plain transformers code goes on from it is shown in model_runner/test_kv_pool.py."""
    run = start(model, tokenizer)
    prompt = tokenizer.encode("The quick brown fox jumps over the lazy dog, and then it")
    run.generate(make_request(prompt, 1))
    runner = run.engine.runner
    assert isinstance(runner, ModelRunner)
    hit = run.engine.scheduler.manager.lookup([*prompt, 0], make_request([*prompt, 0]).info)
    blocks = [block.block_id for block in (*hit.blocks, *([hit.tail] if hit.tail else []))]
    cache = runner.kv_pool.to_dynamic_cache(blocks, hit.num_tokens)
    assert isinstance(cache, DynamicCache)
    assert cache.get_seq_length() == len(prompt)


class ListeningH2O(H2OPolicy):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[float] = []

    def record_attention(self, block: BlockInfo, score: float) -> None:
        self.heard.append(score)
        super().record_attention(block, score)


def test_h2o_hears_of_attention_and_evicts(model: CausalLM, tokenizer: Tokenizer) -> None:
    policy = ListeningH2O()
    shape = Shape(num_blocks=24, block_size=16, max_num_batched_tokens=256, max_model_len=256)
    run = start(model, tokenizer, shape, policy)
    heard = policy.heard
    firsts = [make_request([1, number, *range(2000, 2070)], 4, ignore_eos=True) for number in range(20, 28)]
    for request in firsts:
        run.generate(request)
    layers_times_heads = 30 * 9
    assert heard
    assert all(0 <= score <= layers_times_heads * 1.001 for score in heard)
    assert run.engine.stats().cache.evictions_by_policy["h2o"] > 0


def test_sink_lru_keeps_first_blocks_while_there_are_others(model: CausalLM, tokenizer: Tokenizer) -> None:
    """Chains of one block are all sink: they stay, longer chains lose their ends."""
    shape = Shape(num_blocks=12, block_size=16, max_num_batched_tokens=256, max_model_len=160)
    run = start(model, tokenizer, shape, SinkLRUPolicy())
    short = make_request(list(range(3000, 3014)), 2, ignore_eos=True)
    run.generate(short)
    for number in range(3):
        run.generate(make_request([100 + number, *range(4000, 4100)], 2, ignore_eos=True))
    assert run.engine.stats().cache.eviction_count > 0
    again = make_request(list(range(3000, 3014)), 2, ignore_eos=True)
    run.generate(again)
    assert run.last(again).hit_kind == "exact"
