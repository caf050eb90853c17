"""top_k, top_p and min_p: each keeps the first so many tokens by falling logit, so together the fewest."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from openai_kv.model_runner.transfer import to_device
from openai_kv.request import SamplingParams

FIRST_TRY = 256  # sorting the top of a row is far cheaper than sorting all of it, and nearly always enough


@dataclass(frozen=True, slots=True, eq=False)
class Truncation:
    """One entry per row, [n, 1]; off: top_k is the size of the vocabulary, top_p 1, min_p 0."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor

    def rows(self, index: Tensor) -> "Truncation":
        return Truncation(self.top_k[index], self.top_p[index], self.min_p[index])

    @staticmethod
    def wanted(params: SamplingParams) -> bool:
        return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0

    @classmethod
    def of(cls, params: Sequence[SamplingParams], logits: Tensor) -> "Truncation":
        vocab_size = logits.shape[-1]
        top_k = [row.top_k if 0 < row.top_k < vocab_size else vocab_size for row in params]
        return cls(
            to_device(top_k, torch.int64, logits.device)[:, None],
            to_device([row.top_p for row in params], logits.dtype, logits.device)[:, None],
            to_device([row.min_p for row in params], logits.dtype, logits.device)[:, None],
        )


def truncate(logits: Tensor, truncation: Truncation) -> Tensor:
    """logits [n, vocab_size], after temperature; returns them with -inf for what is dropped.

    Among equal logits the lower ids come first. top_p works on the distribution that top_k left, min_p compares with
    the most likely token, which none of them drops.
    """
    if logits.device.type != "cpu":  # which rows are undecided only the device knows: asking would wait for it
        return _truncate_sorted(logits, truncation)
    kept = torch.full_like(logits, float("-inf"))
    candidates = _top(logits, FIRST_TRY)
    count = _num_kept(candidates.logits, logits, truncation)
    _write_first(kept, candidates, count)
    rest = _undecided(candidates.logits, count)
    if candidates.logits.shape[-1] < logits.shape[-1] and rest.numel():
        kept[rest] = _truncate_sorted(logits[rest], truncation.rows(rest))
    return kept


@dataclass(frozen=True, slots=True, eq=False)
class _Candidates:
    """The largest logits of each row in falling order, equals by rising id; both [n, m]."""

    logits: Tensor
    token_ids: Tensor


def _top(logits: Tensor, count: int) -> _Candidates:
    token_ids = logits.topk(min(count, logits.shape[-1])).indices.sort(-1).values
    ordered = logits.gather(-1, token_ids).sort(dim=-1, descending=True, stable=True)
    return _Candidates(ordered.values, token_ids.gather(-1, ordered.indices))


def _undecided(ordered: Tensor, count: Tensor) -> Tensor:
    """Rows that keep all candidates, or whose last one to stay has equals which may not be among them."""
    return (ordered.gather(-1, count - 1) == ordered[:, -1:])[:, 0].nonzero()[:, 0]


def _truncate_sorted(logits: Tensor, truncation: Truncation) -> Tensor:
    ordered = logits.sort(dim=-1, descending=True, stable=True)
    count = _num_kept(ordered.values, logits, truncation)
    kept = torch.full_like(logits, float("-inf"))
    _write_first(kept, _Candidates(ordered.values, ordered.indices), count)
    return kept


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
    return (in_top_k & in_top_p & in_min_p).sum(-1, keepdim=True).clamp(min=1)


def _write_first(kept: Tensor, candidates: _Candidates, count: Tensor) -> None:
    rank = torch.arange(candidates.logits.shape[-1], device=kept.device)
    kept.scatter_(-1, candidates.token_ids, candidates.logits.masked_fill(rank >= count, float("-inf")))
