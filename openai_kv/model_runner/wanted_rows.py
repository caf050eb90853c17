"""Which rows of a step somebody looks at once all layers have run: the last layer has to finish no others."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from openai_kv.model_runner.transfer import to_device
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import Pooling


def wanted_rows(requests: Sequence[ScheduledRequest], device: torch.device) -> Tensor | None:
    """[n] int64, the rows whose final hidden states are sampled, stored, pooled or reported; None: all."""
    ends = np.cumsum([len(request.token_ids) for request in requests])
    wanted = [range(end - _num_wanted(request), end) for request, end in zip(requests, ends, strict=True)]
    if sum(map(len, wanted)) == ends[-1]:
        return None
    return to_device(np.concatenate(wanted).astype(np.int64), torch.int64, device)


def _num_wanted(request: ScheduledRequest) -> int:
    """It is the last ones."""
    if request.prompt_logprobs is not None or request.pooling is Pooling.MEAN:
        return len(request.token_ids)
    wants_last = request.samples or request.store_slot is not None or request.pooling is not None
    return 1 + request.num_drafts if wants_last else 0
