"""many_conversations.py on a tiny model: 24 conversations of two turns, 128 tokens long, through a pool for 4."""

from pathlib import Path

import pytest
import torch

from benchmarks.many_conversations import build_run, judge, load_reference, serve
from openai_kv.request import FinishReason, Request
from tests.harness import Shape, make_request
from tests.model_runner.driver import random_prompt
from tests.tiny_models import save_tiny_model

NEAR_TIE = 1e-4


def greedy(prompt: list[int]) -> Request:
    return make_request(prompt, 28, temperature=0.0, ignore_eos=True)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_more_conversations_than_fit(tmp_path: Path, family: str) -> None:
    run = build_run(save_tiny_model(family, tmp_path), Shape(33, 16, 24, 64, 128))
    reference = load_reference(tmp_path)
    first = [greedy(random_prompt(number, 64)) for number in range(24)]
    before = serve(run, first)
    second = [greedy([*request.token_ids, *random_prompt(number, 8)]) for number, request in enumerate(first, 100)]
    after = serve(run, second)
    outcomes = [judge(reference, request) for request in (*first, *second)]
    assert {outcome.finish_reason for outcome in outcomes} == {FinishReason.LENGTH}
    assert [len(request.token_ids) for request in second] == [128] * 24
    assert max(outcome.gap for outcome in outcomes) < NEAR_TIE
    assert 4 <= after.running < 8 and after.used <= 33
    assert sum(outcome.preemptions for outcome in outcomes) == after.preemptions >= before.preemptions > 0
    assert after.evictions > before.evictions > 33


def test_a_wrong_token_is_found(tmp_path: Path) -> None:
    reference = load_reference(save_tiny_model("llama", tmp_path))
    prompt = random_prompt(0, 20)
    with torch.inference_mode():
        likeliest = int(reference(torch.tensor([prompt])).logits[0, -1].argmax())
    right, wrong = greedy(prompt), greedy(prompt)
    right.token_ids.append(likeliest)
    wrong.token_ids.append(likeliest ^ 1)
    assert judge(reference, right).gap == 0 < judge(reference, wrong).gap
