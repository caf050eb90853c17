"""HiddenBlocks: blocks go to tiers as inputs of the layers, and come back as K and V. After HCache and Apt-Serve."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.model_runner.restoring import Restorer
from openai_kv.model_runner.staged_inputs import StagedInputs
from openai_kv.model_runner.tier_blocks import TierBlocks
from openai_kv.model_runner.transfer import to_device
from openai_kv.outputs import BlockLoad, BlockSave, ScheduledRequest

TOGETHER = 8  # blocks that are restored at a time, so that it takes little memory
TURNS = 4


class HiddenBlocks(TierBlocks):
    """A payload is the block's inputs [layers, block_size, width], or its K and V where not all of those are there; its
    length says which."""

    def __init__(self, restorer: Restorer, staged: StagedInputs, pool: KVPool) -> None:
        super().__init__(pool)
        self._restorer, self._staged = restorer, staged
        self._device = staged.device

    @property
    def block_bytes(self) -> int:
        return self._restorer.token_bytes * self.pool.block_size

    @contextmanager
    def watching(self, requests: Iterable[ScheduledRequest]) -> Iterator[None]:
        self._staged.begin(requests)
        try:
            yield
        finally:
            self._staged.end()

    def unseen(self, block_ids: Iterable[int]) -> None:
        self._staged.forget(block_ids)

    def read(self, saves: Sequence[BlockSave]) -> list[bytes]:
        whole = self._staged.pop([save.block_id for save in saves])
        others = [save for save in saves if save.block_id not in whole]
        payloads = {save.block_id: data for save, data in zip(others, super().read(others), strict=True)}
        if whole:
            rows = torch.stack([*whole.values()]).flatten(1).view(torch.uint8).cpu().numpy()
            payloads |= {block: row.tobytes() for block, row in zip(whole, rows, strict=True)}
        return [payloads[save.block_id] for save in saves]

    def write(self, loads: Sequence[BlockLoad]) -> None:
        self.unseen(load.block_id for load in loads)
        hidden = [load for load in loads if len(load.payload) == self.block_bytes]
        super().write([load for load in loads if len(load.payload) != self.block_bytes])
        for start in range(0, len(hidden), TOGETHER):
            self._restore(hidden[start : start + TOGETHER])

    def _restore(self, loads: Sequence[BlockLoad]) -> None:
        size, layers = self.pool.block_size, len(self._restorer.layers)
        numbers = np.stack([np.frombuffer(load.payload, np.uint8) for load in loads])
        inputs = to_device(numbers, torch.uint8, self._device).view(self._restorer.dtype)
        inputs = inputs.view(len(loads), layers, size, -1).transpose(0, 1).flatten(1, 2)
        starts = to_device([load.position for load in loads], torch.int64, self._device)
        positions = (starts[:, None] + torch.arange(size, device=self._device)).flatten()
        blocks = to_device([load.block_id for load in loads], torch.int64, self._device)
        restored = self._restorer.keys_and_values(inputs, positions)
        for layer, parts in zip(self.pool.layers, restored, strict=True):
            for tensor, rows in zip((layer.key, layer.value), parts, strict=True):
                tensor[blocks] = rows.unflatten(0, (-1, size)).transpose(1, 2).to(tensor.dtype)

    @torch.inference_mode()
    def seconds_a_block(self) -> float:
        """What restoring takes: the least of some turns."""
        device, shape = self._device, (len(self._restorer.layers), TOGETHER * self.pool.block_size)
        inputs = torch.zeros(*shape, self._restorer.width, dtype=self._restorer.dtype, device=device)
        positions = torch.arange(shape[1], device=device)
        return min(self._seconds(inputs, positions) for _ in range(TURNS)) / TOGETHER

    def _seconds(self, inputs: Tensor, positions: Tensor) -> float:
        begin = time.perf_counter()
        for _, value in self._restorer.keys_and_values(inputs, positions):
            last = value
        last.flatten()[0].item()  # waits for the device
        return time.perf_counter() - begin
