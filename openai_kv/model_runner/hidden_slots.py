"""Last hidden states of whole prompts, so that an exact repeat samples without running a layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from openai_kv.model_runner.transfer import to_device


class HiddenSlots:
    """`num_slots` rows of `hidden_size`, allocated once; who holds which slot is the cache's business."""

    def __init__(self, num_slots: int, hidden_size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self._states = torch.zeros(num_slots, hidden_size, dtype=dtype, device=device)

    def read(self, slots: Sequence[int]) -> Tensor:
        """[len(slots), hidden_size], a copy."""
        return self._states[self._index(slots)]

    def write(self, slots: Sequence[int], states: Tensor) -> None:
        """states [len(slots), hidden_size]"""
        self._states[self._index(slots)] = states

    def _index(self, slots: Sequence[int]) -> Tensor:
        return to_device(slots, torch.int64, self._states.device)
