"""What a step's hidden states say: sampled tokens, and log probabilities for the requests that ask."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from openai_kv.model_runner.drafts import accept, sampling_rows, split
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.logprobs import MAX_ROWS, token_logprobs
from openai_kv.model_runner.sampler import Sampler
from openai_kv.model_runner.transfer import to_device
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Sampled:
    """By request id."""

    token_ids: Mapping[str, Sequence[int]] = field(default_factory=dict)
    logprobs: Mapping[str, Sequence[TokenLogprobs]] = field(default_factory=dict)


class StepSampling:
    """From the final hidden states of each request's rows, by request id, through the head to tokens."""

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self._device = model.model.device
        self._sampler = Sampler(model.eos_token_ids)

    def sample(self, requests: Sequence[ScheduledRequest], rows: Mapping[str, Tensor]) -> Sampled:
        chosen = [request for request in requests if request.samples]
        if not chosen:
            return Sampled()
        states = [rows[request.request_id][-1 - request.num_drafts :] for request in chosen]
        logits = self._model.logits(torch.cat(states))
        sampling = [row for request in chosen for row in sampling_rows(request)]
        asking = [index for index, row in enumerate(sampling) if row.params.logprobs is not None]
        raw = logits[to_device(asking, torch.int64, self._device)]  # a copy: the sampler writes over its logits
        drawn = self._sampler.sample(logits, sampling)
        parts = zip(chosen, split(chosen, drawn), strict=True)
        token_ids = {request.request_id: accept(request, part) for request, part in parts}
        return Sampled(token_ids, _of_sampled(raw, chosen, [drawn[index] for index in asking], token_ids))

    def prompt_logprobs(
        self, running: Sequence[ScheduledRequest], rows: Mapping[str, Tensor]
    ) -> dict[str, list[TokenLogprobs]]:
        asking = (request for request in running if request.prompt_logprobs is not None)
        return {request.request_id: self._of_prompt(request, rows[request.request_id]) for request in asking}

    def _of_prompt(self, request: ScheduledRequest, states: Tensor) -> list[TokenLogprobs]:
        """Of the prompt tokens that follow the rows of `states`, a few rows' logits at a time."""
        assert request.prompt_logprobs is not None
        first = request.num_computed_tokens + 1
        tokens = request.prompt_token_ids[first : first + len(states)]
        found: list[TokenLogprobs] = []
        for start in range(0, len(tokens), MAX_ROWS):
            part = tokens[start : start + MAX_ROWS]
            logits = self._model.logits(states[start : start + len(part)])
            found += token_logprobs(logits, part, [request.prompt_logprobs] * len(part))
        return found


def _of_sampled(
    logits: Tensor, requests: Sequence[ScheduledRequest], drawn: Sequence[int], kept: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[TokenLogprobs]]:
    """logits [len(drawn), vocab_size], raw, of those of the requests that ask; for the tokens that are kept."""
    asking = [request for request in requests if request.params.logprobs is not None]
    if not asking:
        return {}
    counts = [request.params.logprobs or 0 for request in asking for _ in range(request.num_drafts + 1)]
    parts = zip(asking, split(asking, token_logprobs(logits, drawn, counts)), strict=True)
    return {request.request_id: part[: len(kept[request.request_id])] for request, part in parts}
