"""Greedy text in float32 with speculation on: that of `model.generate`, in fewer forward passes where it repeats."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.test_equality import NEW_TOKENS, ROOMY, Subject, count_rows, greedy, make_subject
from tests.tiny_models import save_tiny_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
on_each_backend = pytest.mark.parametrize("backend", ["sdpa", "cpu"])


@pytest.fixture(scope="module", params=["llama", "mistral", "gemma3", "gpt2"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name = request.param
    made = make_subject(name, save_tiny_model(name, tmp_path_factory.mktemp(name)), tiny_tokenizer())
    yield replace(made, speculation="auto")
    assert len(made.near_ties) <= 3, made.near_ties


@on_each_backend
def test_cold_warm_and_exact(subject: Subject, backend: str) -> None:
    run = subject.run(ROOMY, backend)
    prompt = subject.prompt(1, 45)
    cold, exact, warm = greedy(prompt), greedy(prompt), greedy([*prompt[:37], *subject.prompt(2, 9)])
    run.generate(cold)
    rows = count_rows(subject)
    run.generate(exact)
    assert len(rows) < NEW_TOKENS / 4, "the tree knows what comes"
    run.generate(warm)
    assert (run.last(exact).hit_kind, run.last(warm).cached_tokens) == ("exact", 37)
    subject.check(run, cold, warm, exact)


@on_each_backend
def test_a_prompt_that_has_the_answer(subject: Subject, backend: str) -> None:
    """Its own greedy text twice over: the rest of it is a repetition for a while, or not; it is the reference's."""
    run = subject.run(ROOMY, backend)
    start = subject.prompt(6, 12)
    (answer,) = run.generate(greedy(start))
    again = greedy([*start, *answer, *start])
    run.generate(again)
    subject.check(run, again)


@on_each_backend
def test_chunked_and_batched(subject: Subject, backend: str) -> None:
    run = subject.run(replace(ROOMY, max_num_batched_tokens=9, max_num_seqs=6, block_size=7), backend)
    shared = subject.prompt(4, 20)
    prompts = [[*shared, *subject.prompt(50 + number, 3 + 5 * number)] for number in range(3)]
    first, second = [greedy(prompt, 32) for prompt in prompts], [greedy(prompt, 32) for prompt in prompts]
    run.generate(*first)
    rows = count_rows(subject)
    run.generate(*second)
    assert len(rows) < 32
    subject.check(run, *first, *second)


@on_each_backend
def test_evicted_and_preempted(subject: Subject, backend: str) -> None:
    run = subject.run(replace(ROOMY, num_blocks=18, block_size=7, max_model_len=120), backend)
    requests = [greedy(subject.prompt(70 + number, 30 + number), 48) for number in range(5)]
    again = greedy(list(requests[0].prompt_token_ids), 48)
    run.generate(*requests)
    run.generate(again)
    stats = run.engine.stats()
    assert stats.preemptions > 0
    assert stats.cache.eviction_count > 0
    subject.check(run, *requests, again)


@on_each_backend
def test_windows_that_free_what_they_leave_behind(subject: Subject, backend: str) -> None:
    shape = replace(ROOMY, block_size=7, max_num_batched_tokens=16)
    run = subject.run(shape, backend, window_layout="auto", window_share=0.01)
    requests = [greedy(subject.prompt(90 + number, 40 + number), 48) for number in range(3)]
    again = [greedy(list(request.prompt_token_ids), 48) for request in requests]
    run.generate(*requests)
    rows = count_rows(subject)
    run.generate(*again)
    assert len(rows) < 48
    run.engine.check_integrity()
    subject.check(run, *requests, *again)
