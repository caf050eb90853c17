"""Layers with a sliding window free what it leaves behind: the text stays that of `model.generate`, hits stay hits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from openai_kv.metrics import WindowStats
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.request import Request
from tests.harness import Run, Shape
from tests.test_equality import BACKENDS, Subject, greedy, make_subject
from tests.tiny_models import WINDOW, save_tiny_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = ("mistral", "gemma2", "gemma3", "gpt_oss")
BLOCK_SIZE, CHUNK = 7, 16
LONG = 150  # tokens: more than six windows
SMALL = Shape(num_blocks=40, block_size=BLOCK_SIZE, max_num_seqs=4, max_num_batched_tokens=CHUNK, max_model_len=256)
MOST_PARTS = -(-(WINDOW + CHUNK) // BLOCK_SIZE) + 1
on_each_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module", params=FAMILIES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    made = make_subject(
        request.param, save_tiny_model(request.param, tmp_path_factory.mktemp(request.param)), tiny_tokenizer()
    )
    yield made
    assert len(made.near_ties) <= 3, made.near_ties


def start(subject: Subject, shape: Shape, backend: str = "cpu", share: float = 0.01) -> Run:
    return subject.run(shape, backend, window_layout="auto", window_share=share)


def window(run: Run) -> WindowStats:
    stats = run.engine.stats().cache.window
    assert stats is not None
    return stats


def turns(subject: Subject) -> list[Request]:
    """A prompt, an exact repeat, branches inside and at the end of it, and a conversation that goes on."""
    prompt = subject.prompt(1, 60)
    own = [subject.prompt(20 + n, 9) for n in range(4)]
    return [
        greedy(tokens, 8)
        for tokens in (prompt, prompt, [*prompt[:37], *own[0]], [*prompt, *own[1]], [*prompt[:49], *own[2]], own[3])
    ]


def served(run: Run, requests: Sequence[Request]) -> list[int]:
    """One after the other; the tokens that each had cached."""
    for request in requests:
        run.generate(request)
    return [run.last(request).cached_tokens for request in requests]


def test_hits_are_those_of_the_full_layout_where_memory_suffices(subject: Subject) -> None:
    shape = replace(SMALL, num_blocks=128, max_num_batched_tokens=64)
    requests = turns(subject)
    run = start(subject, shape, "cpu", share=1.0)
    cached = served(run, requests)
    assert cached == served(subject.run(shape, "cpu"), turns(subject))
    assert sum(cached) > 150 and window(run).evictions == 0
    subject.check(run, *requests)


@on_each_backend
def test_a_long_request_holds_its_window_only(subject: Subject, backend: str) -> None:
    run, request = start(subject, SMALL, backend), greedy(subject.prompt(2, LONG), 40)
    assert window(run).total == MOST_PARTS
    run.add(request)
    held = []
    while run.engine.has_work:
        run.step()
        held.append(window(run).referenced)
    assert WINDOW // BLOCK_SIZE < max(held) <= MOST_PARTS
    assert max(held[len(held) - 30 :]) <= -(-WINDOW // BLOCK_SIZE) + 1, "while it decodes there is no chunk"
    assert window(run).evictions >= (LONG + 40) // BLOCK_SIZE - MOST_PARTS
    subject.check(run, request)


@on_each_backend
def test_many_at_once_in_pools_for_two_or_three(subject: Subject, backend: str) -> None:
    """Windows are freed, requests preempted, parts and blocks evicted, prefixes computed anew: the text stays."""
    run = start(subject, replace(SMALL, num_blocks=24), backend, share=0.5)
    shared = subject.prompt(3, 24)
    requests = [greedy([*shared, *subject.prompt(40 + n, 5 + 9 * n)], 32) for n in range(4)]
    run.generate(*requests)
    again = [greedy(list(requests[0].prompt_token_ids), 32)]
    served(run, again)
    stats = run.engine.stats()
    assert stats.preemptions > 0 and window(run).evictions > 0
    subject.check(run, *requests, *again)


def test_the_end_of_a_conversation_is_hit_though_its_middle_is_gone(subject: Subject) -> None:
    """Exact, and a turn that goes on; what is asked of the middle is computed again, and can be hit from then on."""
    run = start(subject, replace(SMALL, num_blocks=60))
    prompt = subject.prompt(4, LONG)
    served(run, [greedy(prompt, 10)])
    asides = [greedy([*prompt[:70], *subject.prompt(60 + n, 12)], 10) for n in range(3)]
    requests = [greedy(prompt, 10), greedy([*prompt, *subject.prompt(5, 8)], 10), *asides]
    cached = served(run, requests)
    assert cached[:2] == [LONG, LONG]
    assert cached[2] == 0 and cached[4] == 70
    subject.check(run, *requests)


def test_memory_is_what_the_arithmetic_says(subject: Subject) -> None:
    full = subject.run(SMALL, "cpu").engine.runner
    run = start(subject, SMALL)
    runner = run.engine.runner
    assert isinstance(runner, ModelRunner) and isinstance(full, ModelRunner)
    assert runner.window_pool is not None and full.window_pool is None
    per_block = full.kv_pool.nbytes // SMALL.num_blocks // 2  # of one of the two layers
    num_windowed = runner.info.num_window_layers
    assert num_windowed == (2 if subject.name == "mistral" else 1)
    assert runner.kv_pool.nbytes == per_block * (2 - num_windowed) * SMALL.num_blocks
    assert runner.window_pool.nbytes == per_block * num_windowed * (MOST_PARTS + 1)
    assert runner.info.max_model_len == SMALL.max_model_len
