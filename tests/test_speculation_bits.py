"""In bfloat16 as shipped, bit by bit: texts and log probabilities are the same with speculation and without."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from openai_kv.request import Request, TokenLogprobs
from tests.harness import Run, Shape, build_engine, make_request
from tests.model_runner.driver import paged, random_prompt
from tests.tiny_models import tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPE = Shape(num_blocks=256, block_size=16, max_num_batched_tokens=512, max_model_len=512)
NUM_TOKENS = 48


@dataclass
class Drafts:
    tried: int = 0
    right: int = 0
    most: int = 0  # of a request in a step

    def count(self, scheduled: SchedulerOutput, output: ModelRunnerOutput) -> None:
        for request in scheduled.requests:
            if request.num_drafts:
                self.tried += request.num_drafts
                self.right += len(output.sampled_token_ids[request.request_id]) - 1
                self.most = max(self.most, request.num_drafts)


def engine_run(family: str, kv_format: str, speculation: str) -> tuple[Run, Drafts]:
    settings = RunnerSettings(block_size=16, num_blocks=256, num_hidden_slots=8, kv_cache_dtype=kv_format)
    backend, drafts = select_backend("cpu", torch.device("cpu")), Drafts()
    runner = ModelRunner(optimize(paged(tiny_model(family, torch.bfloat16))), backend, "tiny", settings)
    execute = runner.execute_model

    def counting(scheduled: SchedulerOutput) -> ModelRunnerOutput:
        output = execute(scheduled)
        drafts.count(scheduled, output)
        return output

    runner.execute_model = counting  # type: ignore[method-assign]
    return Run(build_engine(runner, SHAPE, speculation=speculation, max_draft_tokens=16)), drafts


def said(run: Run, *requests: Request) -> list[tuple[list[int], list[TokenLogprobs]]]:
    tokens = run.generate(*requests)
    values = [[entry for out in run.outputs[each.request_id] for entry in out.logprobs] for each in requests]
    return list(zip(tokens, values, strict=True))


def seeded(number: int, length: int, **changes: Any) -> Request:
    params = {"seed": 5, "temperature": 0.0, "logprobs": 3, "ignore_eos": True}
    return make_request(random_prompt(number, length), NUM_TOKENS, **params | changes)


@pytest.mark.parametrize(
    ("family", "kv_format"),
    [*((name, "auto") for name in ("llama", "gemma3", "gpt2")), ("llama", "int8"), ("llama", "int8-int4")],
)
def test_drafts_change_no_bit(family: str, kv_format: str) -> None:
    """Later rounds know what earlier ones said; another temperature or seed parts from it."""
    told = {}
    for mode in ("off", "auto"):
        run, drafts = engine_run(family, kv_format, mode)
        told[mode] = [said(run, seeded(1, 11)), said(run, seeded(2, 300)), said(run, seeded(1, 11))]
        told[mode] += [said(run, seeded(2, 300), seeded(1, 11, temperature=1.0))]
        told[mode] += [said(run, seeded(2, 300, temperature=1.0, seed=9)), said(run, seeded(2, 300))]
    assert 40 < drafts.right < drafts.tried, "right ones and wrong ones"
    assert drafts.most == 16
    assert told["auto"] == told["off"]
