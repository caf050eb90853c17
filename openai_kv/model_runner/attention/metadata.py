"""Where the rows of one step lie: which request, which slots of the pool, how much context."""

from dataclasses import dataclass

from torch import Tensor


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
