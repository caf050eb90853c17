"""Decode steps recorded once per batch size and replayed: as CUDA graphs, so that a GPU doesn't wait for Python."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import SamplingParams

logger = logging.getLogger(__name__)

LARGEST = 256
Forward = Callable[[InputBatch], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """`replay()` computes `output` [rows, hidden_size] anew, from what the recorded input tensors hold by then."""

    replay: Callable[[], None]
    output: Tensor


Record = Callable[[Callable[[], Tensor]], Recording]


class CudaRecorder:
    """Records work as CUDA graphs, which share the memory of what they compute: one replays at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> Recording:
        """`work` is run once before, on a stream of its own: kernels are compiled and libraries set up then."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = work()
        return Recording(graph.replay, output)


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """`max_rows` of a decode step, `max_context` of a request; `scratch_block` is one that nobody reads."""

    max_rows: int
    max_context: int
    block_size: int
    scratch_block: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """1, 2, 4 .. up to the first that holds `max_rows`, or LARGEST."""
        count = (min(self.max_rows, LARGEST) - 1).bit_length() + 1
        return tuple(2**power for power in range(count))


class DecodeGraphs:
    """One recording per size. A step is put into the tensors of the first that holds it.

    What fills it up are rows that write to the scratch block and see nothing but themselves there.
    """

    def __init__(self, forward: Forward, limits: GraphLimits, device: torch.device, record: Record) -> None:
        """`forward` must go by the tensors of its batch; the host numbers only say how large they may become."""
        self._idle = _idle_batch(limits, device)
        self._inputs = _inputs(self._idle, limits)
        self._recordings = {  # the largest first: the others fit into its memory
            size: record(partial(forward, _first(self._inputs, size))) for size in reversed(limits.sizes)
        }

    def takes(self, batch: InputBatch) -> bool:
        """One row of each request, and not too many of them."""
        lengths = batch.metadata.query_lens
        return max(lengths) == 1 and len(lengths) <= max(self._recordings)

    def forward(self, batch: InputBatch) -> Tensor:
        """The final hidden states [rows, hidden_size] of a batch that it `takes`; the next call overwrites them."""
        rows = len(batch.metadata.query_lens)
        size = 1 << (rows - 1).bit_length()
        for inputs, given, idle in zip(*map(_by_row, (self._inputs, batch, self._idle)), strict=True):
            inputs[:rows, : given.shape[1]].copy_(given)
            inputs[rows:size] = idle[rows:size]
        recording = self._recordings[size]
        recording.replay()
        return recording.output[:rows]


def record_decode(forward: Forward, limits: GraphLimits, device: torch.device, record: Record) -> DecodeGraphs | None:
    """None, and a line in the log, for a model that can't be recorded because it reads something from the device."""
    try:
        with torch.inference_mode():
            return DecodeGraphs(forward, limits, device, record)
    except RuntimeError as error:
        logger.warning("decode steps are run, not replayed: %s", error)
        return None


def _idle_batch(limits: GraphLimits, device: torch.device) -> InputBatch:
    """Of the largest size: each request is one token, in the scratch block."""
    params = SamplingParams(max_tokens=1)
    request = ScheduledRequest("idle", (0,), 0, (limits.scratch_block,), False, params, 0, (), ())
    return InputBatch.build([request] * limits.sizes[-1], limits.block_size, device)


def _inputs(idle: InputBatch, limits: GraphLimits) -> InputBatch:
    """The tensors that are recorded from: room for tables of the longest contexts."""
    rows, max_blocks = limits.sizes[-1], -(-limits.max_context // limits.block_size)
    metadata = replace(
        idle.metadata,
        slot_mapping=idle.metadata.slot_mapping.clone(),
        block_tables=idle.metadata.block_tables.repeat(1, max_blocks),
        context_lens=idle.metadata.context_lens.clone(),
        contexts=(limits.max_context,) * rows,
    )
    return replace(idle, token_ids=idle.token_ids.clone(), positions=idle.positions.clone(), metadata=metadata)


def _first(batch: InputBatch, rows: int) -> InputBatch:
    """Views of the first so many requests, of one row each."""
    metadata = replace(
        batch.metadata,
        slot_mapping=batch.metadata.slot_mapping[:rows],
        block_tables=batch.metadata.block_tables[:rows],
        query_starts=batch.metadata.query_starts[: rows + 1],
        context_lens=batch.metadata.context_lens[:rows],
        query_lens=batch.metadata.query_lens[:rows],
        contexts=batch.metadata.contexts[:rows],
    )
    return InputBatch(batch.token_ids[:, :rows], batch.positions[:, :rows], batch.last_rows[:rows], metadata)


def _by_row(batch: InputBatch) -> tuple[Tensor, ...]:
    """What changes from step to step, each [rows, n]."""
    metadata = batch.metadata
    single = (batch.token_ids[0], batch.positions[0], metadata.slot_mapping, metadata.context_lens)
    return (*(numbers[:, None] for numbers in single), metadata.block_tables)
