"""Numbers of the host onto the model's device, without waiting for the device."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(numbers: Sequence[float] | NDArray[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of `numbers`' shape on `device`; on the CPU an array of that type is shared, not copied.

    CUDA copies from ordinary memory only once all work queued before is done, so the numbers go through pinned memory,
    which torch keeps for as long as the copy needs it.
    """
    tensor = torch.as_tensor(numbers, dtype=dtype)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=device.type != "mps")  # on MPS the copy might outlive the numbers
