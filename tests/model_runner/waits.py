"""Finds what makes the host wait for its device, with the meta device standing in for a GPU."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

READS = {"item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "argwhere", "unique", "masked_select"}
READS |= {"cpu", "numpy", "__array__"}
MAKERS = {"tensor", "as_tensor", "new_tensor", "asarray"}


class WaitError(AssertionError):
    """Something waited."""


class Waits(TorchFunctionMode):
    """Refuses all reading from tensors on the device but `tolist`, which it counts, answering with zeros.

    And all copying to it from ordinary memory: torch waits for that one too, unless told not to block.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read_backs = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        on_device = any(isinstance(argument, Tensor) and argument.is_meta for argument in args)
        if on_device and name == "tolist":
            self.read_backs += 1
            return torch.zeros(args[0].shape, dtype=args[0].dtype).tolist()
        if on_device and (name in READS or (name in ("__getitem__", "__setitem__") and _from_host(args[1]))):
            raise WaitError(f"{name} of a tensor on the device")
        result = func(*args, **kwargs)
        copies = name in MAKERS or (name == "to" and not on_device and not kwargs.get("non_blocking"))
        if copies and isinstance(result, Tensor) and result.is_meta:
            raise WaitError(f"{name} onto the device")
        return result


def _from_host(index: Any) -> bool:
    """A list is made a tensor and copied; of a mask the device must say how many there are."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list) or (isinstance(part, Tensor) and part.dtype == torch.bool) for part in parts)
