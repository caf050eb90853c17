"""top_k, top_p and min_p: each keeps the first so many tokens by falling logit, so together the fewest."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openai_kv.request import SamplingParams

FIRST_TRY = 1024  # sorting the top of a row is far cheaper than sorting all of it, and nearly always enough


@dataclass(frozen=True, slots=True, eq=False)
class Truncation:
    """One entry per row, [n, 1]; off: top_k is the size of the vocabulary, top_p 1, min_p 0."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0

    @classmethod
    def of(cls, params: Sequence[SamplingParams], logits: Tensor) -> "Truncation":
        vocab_size = logits.shape[-1]
        top_k = [row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in params]
        return cls(
            torch.tensor(top_k, device=logits.device)[:, None],
            logits.new_tensor([row.top_p for row in params])[:, None],
            logits.new_tensor([row.min_p for row in params])[:, None],
        )


def truncate(logits: Tensor, truncation: Truncation) -> Tensor:
    """logits [n, vocab_size], after temperature; returns them with -inf for what is dropped.

    Among equal logits the lower ids come first. top_p works on the distribution that top_k left, min_p compares with
    the most likely token, which none of them drops.
    """
    vocab_size = logits.shape[-1]
    ordered = logits.topk(min(FIRST_TRY, vocab_size)).values
    kept = _num_kept(ordered, logits, truncation)
    if ordered.shape[-1] < vocab_size and bool((kept == ordered.shape[-1]).any()):
        ordered = logits.sort(descending=True).values
        kept = _num_kept(ordered, logits, truncation)
    return _keep_first(logits, ordered, kept)


def _num_kept(ordered: Tensor, logits: Tensor, truncation: Truncation) -> Tensor:
    """ordered [n, m]: the m largest logits, falling; returns how many of them stay, [n, 1]."""
    rank = torch.arange(ordered.shape[-1], device=ordered.device)
    in_top_k = rank < truncation.top_k
    of_top_k = ordered.masked_fill(~in_top_k, float("-inf")).logsumexp(-1, keepdim=True)
    total = torch.where(truncation.top_k < logits.shape[-1], of_top_k, logits.logsumexp(-1, keepdim=True))
    mass = (ordered - total).exp()
    before = mass.cumsum(-1) - mass
    in_top_p = (before < truncation.top_p) | (truncation.top_p >= 1.0)
    in_min_p = mass >= truncation.min_p * mass[:, :1]
    kept = (in_top_k & in_top_p & in_min_p).sum(-1, keepdim=True)
    return kept.clamp(min=1)


def _keep_first(logits: Tensor, ordered: Tensor, kept: Tensor) -> Tensor:
    """Keep `kept` [n, 1] tokens of each row: all above the last one's logit, and of its equals the lowest ids."""
    last = ordered.gather(-1, kept - 1)
    above, equal = logits > last, logits == last
    missing = kept - above.sum(-1, keepdim=True)
    return logits.masked_fill(~(above | (equal & (equal.cumsum(-1) <= missing))), float("-inf"))
