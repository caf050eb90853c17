"""Log probabilities of tokens among all others, for the positions whose request asks."""

from collections.abc import Sequence

import torch
from torch import Tensor

from openai_kv.model_runner.transfer import to_device
from openai_kv.request import TokenLogprobs

FLOOR = -9999.0
MAX_ROWS = 64  # float32 copies of the logits of this many positions at a time: 13 MB for 50,000 tokens


def token_logprobs(logits: Tensor, token_ids: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """logits [n, vocab_size], raw, of any float dtype, are left alone; the token of each row and its most likely ones.

    Of equals the lower id comes first. `counts`: how many of the most likely each row wants.
    """
    logits = logits.float()
    tokens = to_device(token_ids, torch.int64, logits.device)[:, None]
    own = logits.gather(-1, tokens)
    total = logits.logsumexp(-1, keepdim=True)
    best = _best(logits, min(max(counts), logits.shape[-1]))
    top = (logits.gather(-1, best) - total).clamp(min=FLOOR).tolist()
    values, ranks = (own - total).clamp(min=FLOOR)[:, 0].tolist(), _ranks(logits, tokens, own)
    columns = zip(token_ids, values, ranks, best.tolist(), top, counts, strict=True)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids[:count], scores[:count], strict=True)))
        for token, logprob, rank, ids, scores, count in columns
    ]


def _best(logits: Tensor, count: int) -> Tensor:
    """[n, count] ids of the largest logits. topk may leave out any of several equals; argmax takes the lowest id."""
    rest = logits.clamp(min=torch.finfo(logits.dtype).min) if count > 1 else logits  # -inf is for what was found
    found = torch.empty(len(logits), count, dtype=torch.int64, device=logits.device)
    for column in range(count):
        found[:, column] = rest.argmax(-1)
        if column + 1 < count:
            rest.scatter_(-1, found[:, column : column + 1], float("-inf"))
    return found


def _ranks(logits: Tensor, tokens: Tensor, own: Tensor) -> list[int]:
    before = torch.arange(logits.shape[-1], device=logits.device) < tokens
    ranks: list[int] = (((logits > own) | ((logits == own) & before)).sum(-1) + 1).tolist()
    return ranks
