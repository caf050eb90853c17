"""Grammar masks over the logits of a step, all rows in one operation."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from openai_kv.model_runner.transfer import to_device
from openai_kv.request import TokenConstraint


def mask_logits(logits: Tensor, constraints: Sequence[TokenConstraint | None]) -> None:
    """-inf in place for what each row's constraint rules out; logits [n, vocab_size]. Waits for masks in the making."""
    rows = [row for row, constraint in enumerate(constraints) if constraint is not None]
    if not rows:
        return
    packed = np.stack([np.frombuffer(constraints[row].mask(), np.uint8) for row in rows])  # type: ignore[union-attr]
    bits = np.unpackbits(packed, axis=1, bitorder="little")[:, : logits.shape[-1]]
    ruled_out = to_device(bits == 0, torch.bool, logits.device)
    if len(rows) == len(constraints):
        logits.masked_fill_(ruled_out, float("-inf"))
    else:
        index = to_device(rows, torch.int64, logits.device)
        logits[index] = logits[index].masked_fill(ruled_out, float("-inf"))
