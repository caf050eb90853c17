"""StagedInputs: what attention takes as input, of the blocks that are being filled, until it goes to the tiers."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from openai_kv.model_runner.transfer import to_device
from openai_kv.outputs import ScheduledRequest


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a step in one block: its tokens `start .. end`."""

    block: int
    start: int
    end: int


@dataclass(slots=True)
class _Staged:
    slot: int
    filled: int  # tokens of the block whose inputs are there, from its first on


class StagedInputs:
    """A bounded number of slots, for a block each, allocated once; the least recently written block loses its own.

    A block has its first row written by whoever it is given to, or is copied or loaded to: the first starts its slot
    anew, of the others one has to be told. So what is there is never an earlier owner's.
    """

    def __init__(
        self, count: int, layers: int, width: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._states = torch.zeros(layers, (count + 1) * block_size, width, dtype=dtype, device=device)
        self._block_size = block_size
        self._staged: OrderedDict[int, _Staged] = OrderedDict()  # by block
        self._count = count
        self._free: list[int] = [*range(count)]
        self._nowhere = count  # the slot of rows that are of no use
        self._rows: Tensor | None = None  # of the step that runs
        self._parts: list[_Part] = []
        self._seen = 0  # layers of it
        self.device = self._states.device

    @property
    def nbytes(self) -> int:
        return self._states.nbytes

    def begin(self, requests: Iterable[ScheduledRequest]) -> None:
        """Of the step that runs now, these rows. A step that writes to more blocks than there are slots is not seen."""
        parts = self._parts = [part for request in requests for part in self._parts_of(request)]
        self._seen = 0
        if len(parts) > self._count:
            return
        size, slots = self._block_size, [self._slot(part) for part in parts]
        rows = [slot * size + np.arange(part.start, part.end) for slot, part in zip(slots, parts, strict=True)]
        self._rows = to_device(np.concatenate(rows), torch.int64, self.device)

    def take(self, layer: int, inputs: Tensor) -> None:
        """inputs [1, T, width] of a layer; nothing is kept of what runs outside of `begin` and `end`."""
        if self._rows is not None:
            self._states[layer].index_copy_(0, self._rows, inputs[0])
            self._seen += 1

    def end(self) -> None:
        """What not all layers have shown is not there."""
        if self._seen != len(self._states):
            self.forget(part.block for part in self._parts)
        self._rows = None

    def forget(self, block_ids: Iterable[int]) -> None:
        """They are given a content that is not seen here."""
        for block in block_ids:
            staged = self._staged.pop(block, None)
            if staged is not None:
                self._free.append(staged.slot)

    def pop(self, block_ids: Sequence[int]) -> dict[int, Tensor]:
        """Of those whose inputs are all there [layers, block_size, width], views; their slots are free then."""
        size = self._block_size
        whole = {block: self._staged[block].slot for block in block_ids if self._is_whole(block)}
        self.forget(whole)
        return {block: self._states[:, slot * size : (slot + 1) * size] for block, slot in whole.items()}

    def _is_whole(self, block: int) -> bool:
        return block in self._staged and self._staged[block].filled == self._block_size

    def _parts_of(self, request: ScheduledRequest) -> Iterator[_Part]:
        size, first = self._block_size, request.num_computed_tokens
        last = first + len(request.token_ids)
        for index in range(first // size, -(-last // size)):
            start, end = max(first - index * size, 0), min(last - index * size, size)
            yield _Part(request.block_ids[index], start, end)

    def _slot(self, part: _Part) -> int:
        """The one that nobody reads if the tokens before the part's are not there."""
        staged = self._staged.get(part.block)
        if staged is None and part.start == 0:
            staged = self._staged[part.block] = _Staged(self._free_slot(), 0)
        if staged is None or staged.filled < part.start:
            self.forget([part.block])
            return self._nowhere
        staged.filled = part.end  # what lies behind were drafts that did not come true
        self._staged.move_to_end(part.block)
        return staged.slot

    def _free_slot(self) -> int:
        if not self._free:
            self.forget([next(iter(self._staged))])
        return self._free.pop()
