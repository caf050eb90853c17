"""KV formats, sliding windows, tiers, demotion and eviction policies, all at once: the same text, cached or not."""

from collections import deque
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from openai_kv.cache.demotion import DemotionRule
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.plugins import load_plugins
from openai_kv.request import Request
from openai_kv.tiers.codec import record_bytes
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.tiers import Tiers
from tests.harness import Run, Shape, build_engine
from tests.test_equality import CPU, Subject, greedy, make_subject
from tests.tiers.inline import FixedSpeed, InlineThread
from tests.tiny_models import save_tiny_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
NEW_TOKENS = 6
FAMILIES = ("gemma3", "mistral", "gpt_oss")
BY_BLOCK = "int4-int8"
FORMATS = (BY_BLOCK, "float32", "int8", "int8-int4")
DEMOTIONS = ("write-through", "write-back")
POLICIES = sorted(plugin.name for plugin in load_plugins().plugins if plugin.hook == "register_eviction_policies")


def cases() -> list[tuple[str, str, str, str]]:
    """Each family in each format with each demotion, and policy after policy in turn."""
    chosen, left = [], deque(POLICIES)
    for family, kv_format, demotion in product(FAMILIES, FORMATS, DEMOTIONS):
        while kv_format == BY_BLOCK and load_plugins().create_policy(left[0], {}).needs_attention:
            left.rotate(-1)  # refused
        chosen.append((family, kv_format, demotion, left[0]))
        left.rotate(-1)
    return chosen


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Subject]]:
    folders = {family: save_tiny_model(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}
    made = {family: make_subject(family, folder, tiny_tokenizer()) for family, folder in folders.items()}
    yield made
    assert all(len(subject.near_ties) <= 3 for subject in made.values())


def scale_of(kv_format: str) -> int:
    """Blocks of 64 where keys are rounded by the block; and so much longer are prompts then."""
    return 8 if kv_format == BY_BLOCK else 1


def shape_of(kv_format: str, num_blocks: int) -> Shape:
    scale = scale_of(kv_format)
    return Shape(num_blocks, 8 * scale, max_num_seqs=4, max_num_batched_tokens=16 * scale, max_model_len=64 * scale)


def start(
    subject: Subject, kv_format: str, *tiers: CacheTier, demotion: str = "", policy: str = "lru", num_blocks: int = 8
) -> Run:
    """As the server does it, but for threads."""
    shape, made = shape_of(kv_format, num_blocks), load_plugins().create_policy(policy, {})
    settings = RunnerSettings(
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        num_hidden_slots=shape.num_hidden_slots,
        max_model_len=shape.max_model_len,
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_num_seqs=shape.max_num_seqs,
        kv_cache_dtype=kv_format,
        needs_attention=made.needs_attention,
        window_layout="auto",
        window_share=0.01,
    )
    runner = ModelRunner(subject.paged, select_backend("cpu", CPU, batch_invariant=True), subject.name, settings)
    full, window = runner.info.block_bytes, runner.info.window_block_bytes
    info = TierInfo(runner.info.identity, record_bytes(shape.block_size, max(full, window)), 86400.0)
    joined = Tiers([InlineThread(tier, info) for tier in tiers], block_bytes=full, window_block_bytes=window)
    options: dict[str, Any] = {"tiers": joined, "rules": [DemotionRule(demotion)] * len(tiers), "policy": made}
    engine = build_engine(
        runner, shape, tokenizer=subject.tokenizer, num_window_blocks=runner.num_window_blocks, **options
    )
    engine.scheduler._promotion.speed = FixedSpeed(1.0, 1.0)
    return Run(engine)


def conversations(subject: Subject, kv_format: str) -> list[Request]:
    """Two prompts with a beginning in common, each of them longer with each turn, and once the same."""
    scale = scale_of(kv_format)
    shared = subject.prompt(1, 16 * scale)
    texts = [[*shared, *subject.prompt(10 + number, 34 * scale)] for number in range(2)]
    lengths = (41 * scale, 41 * scale, 50 * scale)
    return [greedy(text[:length], NEW_TOKENS) for length in lengths for text in texts]


def check(subject: Subject, kv_format: str, run: Run, requests: list[Request]) -> None:
    """float32: equal to `model.generate`; what is rounded: to what a pool says that has nothing cached."""
    if kv_format == "float32":
        subject.check(run, *requests)
        return
    cold = start(subject, kv_format, num_blocks=40)
    for prompt in {request.prompt_token_ids for request in requests}:
        cold.engine.reset_cache()
        (expected,) = cold.generate(greedy(list(prompt), NEW_TOKENS))
        assert all(run.tokens(each) == expected for each in requests if each.prompt_token_ids == prompt)


@pytest.mark.parametrize(("family", "kv_format", "demotion", "policy"), cases())
def test_the_text_is_the_same(
    subjects: dict[str, Subject], family: str, kv_format: str, demotion: str, policy: str
) -> None:
    subject = subjects[family]
    run = start(subject, kv_format, HostTier(2**26), demotion=demotion, policy=policy)
    requests = conversations(subject, kv_format)
    for request in requests:
        run.generate(request)
    stats = run.engine.stats().cache
    assert stats.window is not None and stats.window.evictions > 0 and stats.eviction_count > 0
    assert stats.promoted_tokens["host"] > 0
    check(subject, kv_format, run, requests)


def test_every_policy_is_there() -> None:
    assert {policy for *_, policy in cases()} == {*POLICIES}
