"""Greedy text in float32 with steps that are planned ahead: what tests/test_equality.py does not have them do."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.test_equality import ROOMY, Subject, greedy, make_subject
from tests.tiny_models import save_tiny_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")
on_each_backend = pytest.mark.parametrize("backend", ["sdpa", "cpu"])


@pytest.fixture(scope="module", params=["llama", "gemma3", "gpt2"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    name = request.param
    made = make_subject(name, save_tiny_model(name, tmp_path_factory.mktemp(name)), tiny_tokenizer())
    yield replace(made, overlapped=True)
    assert len(made.near_ties) <= 3, made.near_ties


@on_each_backend
def test_chunked_batched_and_in_vain(subject: Subject, backend: str) -> None:
    """One ends at a token that nobody foresees; what the others say does not change."""
    run = subject.run(replace(ROOMY, max_num_batched_tokens=9, max_num_seqs=6, block_size=7), backend)
    shared = subject.prompt(4, 20)
    requests = [greedy([*shared, *subject.prompt(50 + n, 3 + 5 * n)], 32) for n in range(4)]
    (first,) = run.generate(requests[0])
    ended = greedy(list(requests[0].prompt_token_ids), 32)
    ended.params = replace(ended.params, stop_token_ids=(first[20],))
    run.generate(ended, *requests[1:])
    assert run.tokens(ended) == first[: first.index(first[20]) + 1]
    subject.check(run, *requests)


@on_each_backend
def test_windows_that_free_what_they_leave_behind(subject: Subject, backend: str) -> None:
    shape = replace(ROOMY, block_size=7, max_num_batched_tokens=16)
    run = subject.run(shape, backend, window_layout="auto", window_share=0.01)
    requests = [greedy(subject.prompt(90 + n, 40 + n), 48) for n in range(3)]
    run.generate(*requests)
    run.generate(*(again := [greedy(list(request.prompt_token_ids), 48) for request in requests]))
    run.engine.check_integrity()
    subject.check(run, *requests, *again)
