"""Log probabilities against the model's own logits: of drawn tokens, of prompts in chunks, over a warm cache."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from openai_kv.model_runner.logprobs import FLOOR, MAX_ROWS, token_logprobs
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.request import Request, TokenLogprobs
from tests.harness import Run, Shape, build_engine, make_request
from tests.model_runner.driver import paged_runner, random_prompt
from tests.tiny_models import tiny_model

SHAPE = Shape(num_blocks=64, block_size=8, max_num_batched_tokens=32, max_model_len=256)


def test_best_rank_and_own() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 5.0]])
    first, second = token_logprobs(logits, [2, 1], [3, 0])
    expected = logits.log_softmax(-1)
    assert [token for token, _ in first.top] == [1, 2, 3], "of equals the lower id"
    assert [logprob for _, logprob in first.top] == pytest.approx(expected[0, [1, 2, 3]].tolist())
    assert (first.token_id, first.rank) == (2, 2)
    assert first.logprob == pytest.approx(float(expected[0, 2]))
    assert (second.rank, second.top) == (3, ())
    assert logits.tolist() == [[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 5.0]], "left alone"


def test_many_equals_give_the_lowest_ids() -> None:
    """topk would choose any of them; bfloat16 logits have many."""
    (entry,) = token_logprobs(torch.zeros(1, 500, dtype=torch.bfloat16), [499], [5])
    assert [token for token, _ in entry.top] == [0, 1, 2, 3, 4]
    assert entry.rank == 500


def test_floor() -> None:
    (entry,) = token_logprobs(torch.tensor([[0.0, float("-inf")]]), [1], [2])
    assert entry.logprob == entry.top[1][1] == FLOOR


def run_of(model: PreTrainedModel, shape: Shape = SHAPE) -> Run:
    settings = RunnerSettings(block_size=shape.block_size, num_blocks=shape.num_blocks, num_hidden_slots=8)
    return Run(build_engine(paged_runner(model, settings), shape))


@torch.inference_mode()
def reference(request: Request, run: Run) -> Tensor:
    """[tokens - 1, vocab_size]: what the unchanged model thinks of each next token."""
    tokens = [*request.prompt_token_ids, *run.tokens(request)]
    logits: Tensor = tiny_model("llama")(torch.tensor([tokens])).logits[0]
    return logits[:-1].log_softmax(-1)


def check(entries: list[TokenLogprobs], expected: Tensor, tokens: list[int]) -> None:
    assert [entry.token_id for entry in entries] == tokens
    for entry, row in zip(entries, expected, strict=True):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(row.topk(len(entry.top)).values.tolist(), abs=1e-4)
        assert all(value == pytest.approx(float(row[token]), abs=1e-4) for token, value in entry.top)


def told(run: Run, request: Request) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
    outputs = run.outputs[request.request_id]
    prompt = [entry for output in outputs for entry in output.prompt_logprobs]
    return prompt, [entry for output in outputs for entry in output.logprobs]


@pytest.mark.usefixtures("one_thread")
def test_prompt_and_output_against_the_model_cold_and_warm() -> None:
    """The prompt is longer than a step and than a slice; the penalties and the draw leave no trace in the report."""
    run, prompt = run_of(tiny_model("llama")), random_prompt(1, MAX_ROWS + 30)
    sampling: dict[str, Any] = {
        "temperature": 0.8,
        "seed": 3,
        "presence_penalty": 1.5,
        "logit_bias": {7: 20.0},
        "ignore_eos": True,
    }
    warm = make_request(prompt, 6, **sampling)
    run.generate(warm)
    asking = [make_request(prompt, 6, logprobs=3, prompt_logprobs=k, **sampling) for k in (0, 4)]
    run.generate(*asking)
    for request in asking:
        of_prompt, of_output = told(run, request)
        expected = reference(request, run)
        check(of_prompt, expected[: len(prompt) - 1], prompt[1:])
        check(of_output, expected[len(prompt) - 1 :], run.tokens(request))
        assert run.tokens(request) == run.tokens(warm)
        assert run.last(request).cached_tokens == 0, "it reads nothing"
    again = make_request([*prompt, 5], 1)
    run.generate(again)
    assert run.last(again).cached_tokens == len(prompt), "but writes"


@pytest.mark.usefixtures("one_thread")
def test_preempted_in_its_prompt_it_starts_again() -> None:
    """The second prompt waits for blocks in its middle, is pushed back, and is still reported once and whole."""
    shape = replace(SHAPE, num_blocks=13, max_num_batched_tokens=5, max_num_seqs=2, max_model_len=90)
    run = run_of(tiny_model("llama"), shape)
    first = make_request(random_prompt(2, 30), 50, temperature=0.0, ignore_eos=True)
    second = make_request(random_prompt(3, 60), 2, temperature=0.0, prompt_logprobs=2, ignore_eos=True)
    run.generate(first, second)
    of_prompt, _ = told(run, second)
    check(of_prompt, reference(second, run)[:59], list(second.prompt_token_ids[1:]))
    assert second.num_preemptions > 0
