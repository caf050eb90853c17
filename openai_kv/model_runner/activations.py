"""How much memory a step takes beside weights and pool: measured, before the pool takes the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.interface import PagedStep
from openai_kv.model_runner.fused.layer import in_parts
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.kv_formats import KVFormat
from openai_kv.model_runner.kv_pool import KVPool, LayerShape
from openai_kv.model_runner.loader import CausalLM
from openai_kv.model_runner.logprobs import MAX_ROWS
from openai_kv.model_runner.open_blocks import OpenSlots
from openai_kv.model_runner.probe import refusing
from openai_kv.model_runner.sampler import Sampler, SamplingRow
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import SamplingParams

FEW, MANY = 4, 24  # rows of the steps that are counted
BLOCK_SIZE = 16
COSTLIEST = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)


class ActivationMeter(TorchDispatchMode):
    """Counts the bytes of tensors made under it that are alive; what an operator takes while it runs is unseen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        for storage in _storages(result):
            if storage._cdata not in given:
                self._alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return result


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [value.untyped_storage() for value in tree_leaves(values) if isinstance(value, Tensor)]


@dataclass(frozen=True, slots=True, eq=False)
class DryStep:
    """A step of made-up prompts: `layers`, then `head` with the costliest sampling there is.

    `longest`: tokens of a prompt, None for any.
    """

    model: CausalLM
    backend: AttentionBackend
    shapes: Sequence[LayerShape]
    kv_format: KVFormat
    longest: int | None = None

    def prepare(self, rows: int, context: int = 0) -> tuple[InputBatch, KVPool]:
        """As few prompts as `longest` allows, each of at least `context` tokens, in blocks that they share."""
        device, length = self.model.model.device, min(rows, self.longest or rows)
        num_blocks = -(-rows // BLOCK_SIZE)
        requests = [
            _request(min(length, rows - start), max(length, context), num_blocks) for start in range(0, rows, length)
        ]
        pool = KVPool.allocate(
            self.shapes,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            kv_format=self.kv_format,
            device=device,
            open_slots=OpenSlots(num_blocks, self.model.model.dtype),
        )
        return InputBatch.build(requests, BLOCK_SIZE, device), pool

    def layers(self, batch: InputBatch, pool: KVPool) -> Tensor:
        step = PagedStep(self.backend, pool, pool.prepare(batch.metadata))
        return self.model.hidden_states(batch.token_ids, batch.positions, step)

    def head(self, states: Tensor) -> None:
        rows = [SamplingRow(COSTLIEST, 0, 0, (), ())] * len(states)
        Sampler(frozenset()).sample(self.model.logits(states), rows)


def _request(length: int, context: int, num_blocks: int) -> ScheduledRequest:
    table = [block % num_blocks for block in range(-(-context // BLOCK_SIZE))]
    return ScheduledRequest("dry", [0] * length, context - length, table, False, COSTLIEST, 0, (), ())


@torch.inference_mode()
def step_bytes(dry: DryStep, rows: int, samples: int) -> int:
    """Most bytes that a step of `rows` rows, `samples` of them sampled, holds at a time beside weights and pool.

    On CUDA it is run, at the end of the longest prompt, and torch's allocator asked. Elsewhere it may take minutes: of
    two short ones every tensor is counted, and what a row more took carried on to `rows`. Raises ModelLoadError.
    """
    samples = min(rows, max(samples, MAX_ROWS))
    with refusing(dry.model):
        if dry.model.model.device.type == "cuda":
            return _allocated(dry, rows, samples)
        few, many = counted_bytes(dry, FEW), counted_bytes(dry, MANY)
    return _carried_on(few[0], many[0], rows) + _carried_on(few[1], many[1], samples)


def counted_bytes(dry: DryStep, rows: int) -> tuple[int, int]:
    """In the layers, and in head and sampler for all rows."""
    batch, pool = dry.prepare(rows)
    with in_parts(dry.model.model), ActivationMeter() as in_layers:  # one operator's tensors would be unseen
        states = dry.layers(batch, pool)
    with ActivationMeter() as in_head:
        dry.head(states)
    return in_layers.peak, in_head.peak


def _carried_on(few: int, many: int, rows: int) -> int:
    return few + max(0, many - few) * max(0, rows - FEW) // (MANY - FEW)


def _allocated(dry: DryStep, rows: int, samples: int) -> int:
    device = dry.model.model.device
    batch, pool = dry.prepare(rows, dry.longest or 0)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    dry.head(dry.layers(batch, pool)[:samples])
    return int(torch.cuda.max_memory_allocated(device) - before)
