"""Drafted rows: what each is sampled by, and which of them said what was guessed.

After Leviathan et al. 2023 (arXiv:2211.17192), with one difference: a row's draw is the one it would have without
drafts, and a guess is right if it equals the token drawn. So the text is the same, be it greedy or sampled.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from openai_kv.model_runner.sampler import SamplingRow
from openai_kv.outputs import ScheduledRequest

T = TypeVar("T")


def sampling_rows(request: ScheduledRequest) -> Iterator[SamplingRow]:
    """One for each row of the request that is sampled; each takes the drafts before it for granted."""
    output, drafts = request.output_token_ids, request.drafts
    for taken in range(request.num_drafts + 1):
        yield SamplingRow(
            request.params,
            request.seed,
            len(output) + taken,
            request.prompt_token_ids,
            [*output, *drafts[:taken]] if taken else output,
            request.choice,
            request.constraint,
        )


def accept(request: ScheduledRequest, drawn: Sequence[int]) -> Sequence[int]:
    """Of the tokens drawn, one a row: those that drafts guessed, up to the first they did not, which is the last."""
    right = 0
    while right < request.num_drafts and drawn[right] == request.drafts[right]:
        right += 1
    return drawn[: right + 1]


def split(requests: Sequence[ScheduledRequest], values: Sequence[T]) -> Iterator[list[T]]:
    """One value a sampled row, by request."""
    rest = iter(values)
    return (list(islice(rest, request.num_drafts + 1)) for request in requests)
