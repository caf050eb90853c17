"""Hidden states in the tiers: what is restored from them gives the text of `model.generate`, in half the bytes."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from openai_kv.cache.demotion import DemotionRule
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import ModelInfo
from openai_kv.tiers.codec import record_bytes
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.tiers import Tiers
from tests.harness import Run, Shape, build_engine
from tests.test_equality import CPU, Subject, greedy, make_subject
from tests.tiers.inline import FixedSpeed, InlineThread
from tests.tiers.test_equality import counted_rows
from tests.tiny_models import save_multi_head_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = Shape(num_blocks=24, block_size=8, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=160)
KV_BYTES = 2 * 2 * 4 * 16 * 4 * 8  # K and V, layers, heads, head_dim, float32, tokens
HIDDEN_BYTES = 2 * 64 * 4 * 8  # layers, d_model, float32, tokens


@pytest.fixture(scope="module", params=["llama", "qwen3", "gpt2", "llama fused"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    family, _, fused = request.param.partition(" ")
    made = make_subject(family, save_multi_head_model(family, tmp_path_factory.mktemp(family)), tiny_tokenizer())
    if fused:
        select_backend("cpu", CPU)  # loads the operators
        made = replace(made, paged=optimize(made.paged))
    return made


class Server(Run):
    """As the server does it, but for threads."""

    def __init__(self, subject: Subject, tier: CacheTier, content: str = "auto", speculation: str = "off") -> None:
        settings = RunnerSettings(
            block_size=SHAPE.block_size,
            num_blocks=SHAPE.num_blocks,
            num_hidden_slots=SHAPE.num_hidden_slots,
            max_model_len=SHAPE.max_model_len,
            max_num_batched_tokens=SHAPE.max_num_batched_tokens,
            max_num_seqs=SHAPE.max_num_seqs,
            tier_content=content,
        )
        self.runner = ModelRunner(subject.paged, select_backend("sdpa", CPU), subject.name, settings)
        info = self.runner.info
        size = record_bytes(SHAPE.block_size, info.stored_block_bytes)
        self.thread = InlineThread(tier, TierInfo(info.identity, size, 86400.0))
        tiers = Tiers([self.thread], block_bytes=info.block_bytes, hidden_bytes=info.hidden_block_bytes)
        rules = [DemotionRule("write-through")]
        engine = build_engine(
            self.runner, SHAPE, tokenizer=subject.tokenizer, tiers=tiers, rules=rules, speculation=speculation
        )
        engine.scheduler._promotion.speed = FixedSpeed(1.0, 1.0)
        super().__init__(engine)


def records(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def payload_sizes(folder: Path) -> list[int]:
    return [path.stat().st_size - record_bytes(SHAPE.block_size, 0) for path in records(folder)]


def test_after_a_restart_only_the_tail_runs_and_a_record_has_half_the_bytes(subject: Subject, tmp_path: Path) -> None:
    prompt = subject.prompt(1, 90)
    first, asked = Server(subject, DiskTier(str(tmp_path))), greedy(prompt, 12)
    first.generate(asked)
    info: ModelInfo = first.runner.info
    assert (info.block_bytes, info.hidden_block_bytes) == (KV_BYTES, HIDDEN_BYTES) == (2 * HIDDEN_BYTES, HIDDEN_BYTES)
    assert payload_sizes(tmp_path) == [HIDDEN_BYTES] * (101 // 8), "of the answer too"
    again, once_more = Server(subject, DiskTier(str(tmp_path))), greedy(prompt, 12)
    with counted_rows(subject) as rows:
        again.generate(once_more)
        assert sum(rows) == 2 + 11
    subject.check(first, asked)
    subject.check(again, once_more)
    assert again.last(once_more).promoted_tokens == {"disk": 88}


def test_computed_from_the_front_while_the_back_is_loaded(subject: Subject, tmp_path: Path) -> None:
    prompt = subject.prompt(2, 138)  # 17 blocks and two tokens
    Server(subject, DiskTier(str(tmp_path))).generate(greedy(prompt, 1))
    again, asked = Server(subject, DiskTier(str(tmp_path))), greedy(prompt, 12)
    again.engine.scheduler._promotion.speed = FixedSpeed(1e-4, 1e-4)
    call = again.engine.scheduler.tiers.speeds[0].call
    call.base, call.slope, call.measured = 1.6e-6, 1e-6, True  # so the first call is for eight blocks
    again.thread.held, again.thread.let_through = True, 2  # the look-up and the last eight blocks
    again.generate(asked)
    subject.check(again, asked)
    assert again.last(asked).promoted_tokens == {"disk": 64}


def test_a_prompt_that_parts_within_a_block(subject: Subject, tmp_path: Path) -> None:
    stem = subject.prompt(3, 70)
    Server(subject, DiskTier(str(tmp_path))).generate(greedy(stem, 1))
    again = Server(subject, DiskTier(str(tmp_path)))
    first, second = greedy(stem, 8), greedy([*stem[:61], *subject.prompt(4, 20)], 8)
    again.generate(first)
    again.generate(second)
    subject.check(again, first, second)
    assert (again.last(first).cached_tokens, again.last(second).cached_tokens) == (64, 61)


def test_a_damaged_record_costs_what_lies_before_it(subject: Subject, tmp_path: Path) -> None:
    prompt = subject.prompt(5, 90)
    Server(subject, DiskTier(str(tmp_path))).generate(greedy(prompt, 1))
    for path, change in zip(records(tmp_path)[3:5], (HIDDEN_BYTES // 2, -1), strict=True):
        data = bytearray(path.read_bytes())
        data[change] ^= 1
        path.write_bytes(data)
    again, asked = Server(subject, DiskTier(str(tmp_path))), greedy(prompt, 12)
    again.generate(asked)
    subject.check(again, asked)
    assert again.thread.problems["corrupt"] > 0


def test_records_of_one_content_are_not_found_by_a_server_of_the_other(subject: Subject, tmp_path: Path) -> None:
    prompt = subject.prompt(6, 40)
    for content in ("auto", "kv"):
        server, asked = Server(subject, DiskTier(str(tmp_path)), content), greedy(prompt, 1)
        server.generate(asked)
        assert (server.last(asked).promoted_tokens, dict(server.thread.problems)) == ({}, {})
    assert payload_sizes(tmp_path).count(HIDDEN_BYTES) == payload_sizes(tmp_path).count(KV_BYTES) == 5


def test_a_turn_that_goes_on_in_a_copied_block_stores_k_and_v_of_that_one(subject: Subject, tmp_path: Path) -> None:
    server = Server(subject, DiskTier(str(tmp_path)))
    conversation = subject.prompt(7, 20)
    for turn in range(3):
        asked = greedy(conversation, 6)
        server.generate(asked)
        subject.check(server, asked)
        conversation = [*conversation, *server.tokens(asked), *subject.prompt(turn, 15)]
    assert {*payload_sizes(tmp_path)} == {HIDDEN_BYTES, KV_BYTES}
    again, asked = Server(subject, DiskTier(str(tmp_path))), greedy(conversation, 12)
    again.generate(asked)
    subject.check(again, asked)
    assert again.last(asked).promoted_tokens == {"disk": 64}


@pytest.mark.parametrize("speculation", ["off", "auto"])
def test_crowds_that_do_not_fit_get_the_same_text(subject: Subject, speculation: str) -> None:
    """Evictions, preemptions, copies, loads and drafts in the same steps."""
    server, random = Server(subject, HostTier(2**26), speculation=speculation), Random(8)
    stems = [subject.prompt(seed, 70) for seed in range(4)]
    for _ in range(4):
        crowd = [greedy(random.choice(stems)[: random.randrange(20, 71)], 8) for _ in range(5)]
        server.generate(*crowd)
        subject.check(server, *crowd)
    stats = server.engine.stats().cache
    assert stats.eviction_count > 0
    assert stats.promoted_tokens["host"] > 64
    assert not server.thread.problems
