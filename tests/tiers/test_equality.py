"""Real models: text over demoted, stored and loaded blocks equals `model.generate`, and loads replace computation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openai_kv.cache.demotion import DemotionRule
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.tiers.codec import record_bytes
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.tiers import Tiers
from tests.harness import Run, Shape, build_engine
from tests.test_equality import CPU, Subject, greedy, make_subject
from tests.tiers.inline import FixedSpeed, InlineThread
from tests.tiny_models import save_tiny_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = Shape(num_blocks=24, block_size=8, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=160)


@pytest.fixture(scope="module", params=["llama", "qwen2", "gemma3"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = save_tiny_model(request.param, tmp_path_factory.mktemp(request.param))
    return make_subject(request.param, folder, tiny_tokenizer())


def start(subject: Subject, tiers: list[CacheTier], policy: str) -> Run:
    """As the server does it, but for threads."""
    settings = RunnerSettings(
        block_size=SHAPE.block_size,
        num_blocks=SHAPE.num_blocks,
        num_hidden_slots=SHAPE.num_hidden_slots,
        max_model_len=SHAPE.max_model_len,
    )
    runner = ModelRunner(subject.paged, select_backend("sdpa", CPU), subject.name, settings)
    info = TierInfo(runner.info.identity, record_bytes(SHAPE.block_size, runner.info.block_bytes), 86400.0)
    joined = Tiers([InlineThread(tier, info) for tier in tiers], block_bytes=runner.info.block_bytes)
    rules = [DemotionRule(policy) for _ in tiers]
    engine = build_engine(runner, SHAPE, tokenizer=subject.tokenizer, tiers=joined, rules=rules)
    engine.scheduler._promotion.speed = FixedSpeed(1.0, 1.0)
    return Run(engine)


@contextmanager
def counted_rows(subject: Subject) -> Iterator[list[int]]:
    """How many tokens go through the model."""
    rows: list[int] = []
    embedding: Any = subject.paged.model.get_input_embeddings()
    handle = embedding.register_forward_pre_hook(lambda _, arguments: rows.append(arguments[0].shape[1]))
    try:
        yield rows
    finally:
        handle.remove()


def test_after_a_restart_on_the_same_folder_only_the_tail_runs(subject: Subject, tmp_path: Path) -> None:
    prompt = subject.prompt(1, 90)
    first, asked = start(subject, [DiskTier(str(tmp_path))], "write-through"), greedy(prompt, 12)
    with counted_rows(subject) as rows:
        first.generate(asked)
        assert sum(rows) == 90 + 11
    again, once_more = start(subject, [DiskTier(str(tmp_path))], "write-through"), greedy(prompt, 12)
    with counted_rows(subject) as rows:
        again.generate(once_more)
        assert sum(rows) == 2 + 11
    subject.check(first, asked)
    subject.check(again, once_more)


def test_conversations_that_do_not_fit_get_the_same_text(subject: Subject) -> None:
    run = start(subject, [HostTier(2**26)], "write-back")
    prompts = [subject.prompt(seed, 70) for seed in range(5)]
    for length in (40, 70, 70):
        asked = [greedy(prompt[:length], 8) for prompt in prompts]
        run.generate(*asked)
        subject.check(run, *asked)
    stats = run.engine.stats().cache
    assert stats.eviction_count > 0
    assert stats.promoted_tokens["host"] > 3 * 64, "most had nothing else to find their prompts in"


def test_another_models_blocks_are_not_found(subject: Subject, tmp_path: Path) -> None:
    folder = tmp_path / "blocks"
    prompt = subject.prompt(2, 40)
    start(subject, [DiskTier(str(folder))], "write-through").generate(greedy(prompt, 1))
    weight = next(iter(subject.paged.model.parameters()))
    kept = weight.data[7, 3].clone()
    try:
        weight.data[7, 3] += 1
        run = start(subject, [DiskTier(str(folder))], "write-through")
        run.generate(greedy(prompt, 1))
        assert run.engine.stats().cache.promoted_tokens == {}
    finally:
        weight.data[7, 3] = kept
