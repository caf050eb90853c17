"""Where the rows of one step lie: which request, which slots of the pool, how much context."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class OpenStep:
    """Where keys lie that are not rounded yet (`open_blocks.py`). All rows of a request are in one block, its last."""

    key_slots: Tensor  # [T] int64: open slot * block_size + offset of each row's key
    own_slots: Tensor  # [R] int32: the open slot of each request's last block
    filled_blocks: Tensor  # [n] int64: blocks that are full with this step, and their open slots
    filled_slots: Tensor  # [n] int64

    def to(self, device: torch.device) -> "OpenStep":
        tensors = (self.key_slots, self.own_slots, self.filled_blocks, self.filled_slots)
        return OpenStep(*(tensor.to(device) for tensor in tensors))


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMetadata:
    """One step of T rows from R requests (each with at least one row), packed in request order.

    Tensors lie on the model's device. The rows of request r are `query_starts[r] .. query_starts[r + 1]` and are the
    last `query_lens[r]` of its `contexts[r]` tokens.
    """

    slot_mapping: Tensor  # [T] int64: block_id * block_size + offset of each row's K and V
    block_tables: Tensor  # [R, max_blocks] int32, padded with 0
    query_starts: Tensor  # [R + 1] int32
    context_lens: Tensor  # [R] int32: tokens of the request including this step's
    query_lens: tuple[int, ...]  # the same as host numbers, no device sync
    contexts: tuple[int, ...]
    open: OpenStep | None = None  # for pools whose keys are rounded by the block
