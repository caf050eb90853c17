"""Vectors of prompts: what one step contributes to those of the requests that want one."""

from array import array
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from openai_kv.outputs import ScheduledRequest
from openai_kv.request import Pooling


def pool(requests: Sequence[ScheduledRequest], states: Mapping[str, Tensor]) -> "dict[str, array[float]]":
    """states: the final hidden states [n, hidden_size] of each request's rows, by id."""
    pooling = [request for request in requests if request.pooling is not None]
    if not pooling:
        return {}
    parts = torch.stack([_contribution(request, states[request.request_id]) for request in pooling]).tolist()
    return {request.request_id: array("f", part) for request, part in zip(pooling, parts, strict=True)}


def _contribution(request: ScheduledRequest, rows: Tensor) -> Tensor:
    """[hidden_size] float32"""
    if request.pooling is Pooling.LAST:
        return rows[-1].float()
    return rows.sum(0, dtype=torch.float32) / len(request.prompt_token_ids)
