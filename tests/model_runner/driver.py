"""Drives a ModelRunner by hand, one SchedulerOutput at a time, with block tables that are out of order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from openai_kv.model_runner.attention.interface import IMPLEMENTATION, register
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.outputs import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from openai_kv.request import SamplingParams
from tests.tiny_models import VOCAB_SIZE, tiny_model

GREEDY = SamplingParams(max_tokens=512, temperature=0.0)
NEAR_TIE = 1e-4


@dataclass(eq=False)
class Stream:
    """One request's side of it: its tokens so far, how many are computed, and its blocks."""

    request_id: str
    prompt: list[int]
    block_ids: list[int]
    params: SamplingParams = GREEDY
    seed: int = 0
    output: list[int] = field(default_factory=list)
    computed: int = 0

    @property
    def num_pending(self) -> int:
        return len(self.prompt) + len(self.output) - self.computed

    def take(self, length: int | None = None) -> ScheduledRequest:
        """The next `length` rows, None for all that are pending; samples if nothing is pending after that."""
        length = self.num_pending if length is None else length
        tokens = (self.prompt + self.output)[self.computed : self.computed + length]
        samples = length == self.num_pending
        scheduled = ScheduledRequest(
            self.request_id,
            tokens,
            self.computed,
            self.block_ids,
            samples,
            self.params,
            self.seed,
            self.prompt,
            list(self.output),
        )
        self.computed += length
        return scheduled


class Driver:
    """A runner, and what a scheduler would do for it."""

    def __init__(
        self,
        model: str | PreTrainedModel,
        block_size: int = 16,
        num_blocks: int = 64,
        backend: str = "sdpa",
        **settings: Any,
    ) -> None:
        model = tiny_model(model) if isinstance(model, str) else model
        sizes = RunnerSettings(block_size=block_size, num_blocks=num_blocks, **settings)
        self.runner = paged_runner(model, sizes, backend)
        self._free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
        self._block_size = block_size
        self._step = 0

    def stream(self, request_id: str, prompt: Sequence[int], room: int = 80, **fields: Any) -> Stream:
        """A new request with blocks for `room` tokens beyond its prompt."""
        count = -(-(len(prompt) + room) // self._block_size)
        blocks, self._free = self._free[:count], self._free[count:]
        assert len(blocks) == count, "the test's pool is too small"
        return Stream(request_id, list(prompt), blocks, **fields)

    def execute(self, *requests: ScheduledRequest, **fields: Any) -> ModelRunnerOutput:
        self._step += 1
        return self.runner.execute_model(SchedulerOutput(self._step, requests, **fields))

    def step(self, *parts: tuple[Stream, int | None]) -> ModelRunnerOutput:
        """Run so many rows of each stream; sampled tokens are appended."""
        streams = {stream.request_id: stream for stream, _ in parts}
        output = self.execute(*(stream.take(length) for stream, length in parts))
        for request_id, tokens in output.sampled_token_ids.items():
            streams[request_id].output.extend(tokens)
        return output

    def generate(self, *streams: Stream, num_tokens: int) -> None:
        """Run all of them together until each has `num_tokens` of output."""
        while any(len(stream.output) < num_tokens for stream in streams):
            self.step(*((stream, None) for stream in streams if len(stream.output) < num_tokens))


def paged_runner(model: PreTrainedModel, settings: RunnerSettings, backend: str = "sdpa") -> ModelRunner:
    return ModelRunner(paged(model), select_backend(backend, torch.device("cpu")), "tiny", settings)


def paged(model: PreTrainedModel) -> CausalLM:
    register()
    model.set_attn_implementation(IMPLEMENTATION)
    return CausalLM.wrap(model)


def random_prompt(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()
    return tokens


def masked_eos(num_tokens: int) -> SamplingParams:
    """Greedy, and no end before `num_tokens`, as `generate(min_new_tokens=...)` has it."""
    return replace(GREEDY, min_tokens=num_tokens)


@dataclass(frozen=True, eq=False)
class Reference:
    """What `model.generate` says, with the logits of every step."""

    tokens: list[int]
    logits: Tensor

    def near_ties(self, tokens: Sequence[int]) -> int:
        """0 if `tokens` are the same; 1 if they part where the two best logits are as good as equal; else it fails."""
        parted = [index for index, (ours, its) in enumerate(zip(tokens, self.tokens, strict=True)) if ours != its]
        if not parted:
            return 0
        best, second = self.logits[parted[0]].topk(2).values.tolist()
        assert best - second < NEAR_TIE, f"token {parted[0]}: {tokens[parted[0]]}, not {self.tokens[parted[0]]}"
        return 1


def reference(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> Reference:
    output: Any = model.generate(  # type: ignore[operator]
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    return Reference(output.sequences[0, len(prompt) :].tolist(), torch.cat(output.scores))
