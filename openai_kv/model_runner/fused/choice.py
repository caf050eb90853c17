"""Which kernel multiplies many rows faster on this machine, by trying both."""

import time

import torch
from torch import Tensor

from openai_kv.model_runner.fused import operators

ROWS = (16, 64, 256)
COLUMNS, DEPTH = 1024, 1024
TURNS = 5
WORTH = 1.2  # less than this may be chance


def brgemm_rows() -> int:
    """The least of ROWS from which on torch's brgemm is faster in bfloat16; 0: never, or there is none."""
    if not operators.has_brgemm():
        return 0
    x, weight = (torch.randn(size, DEPTH).bfloat16() for size in (ROWS[-1], COLUMNS))
    packed = operators.pack_linear(weight)
    faster = [_is_faster(x[:rows], packed) for rows in ROWS]
    lost = len(faster) - faster[::-1].index(False) if False in faster else 0
    return ROWS[lost] if lost < len(ROWS) else 0


def _is_faster(x: Tensor, packed: Tensor) -> bool:
    """And right."""
    ours, torchs = (operators.packed_linear(x, packed, None, COLUMNS, limit) for limit in (0, 1))
    if not torch.allclose(ours.float(), torchs.float(), rtol=0.02, atol=0.5):
        return False
    return _seconds(x, packed, 0) > WORTH * _seconds(x, packed, 1)


def _seconds(x: Tensor, packed: Tensor, limit: int) -> float:
    """Of the fastest of some turns."""
    times = []
    for _ in range(TURNS):
        start = time.perf_counter()
        operators.packed_linear(x, packed, None, COLUMNS, limit)
        times.append(time.perf_counter() - start)
    return min(times)
