"""Runs one step's work on the model: copies, one packed forward, logits, sampling."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from openai_kv.cgroup import num_cpus
from openai_kv.model_runner import block_transfer
from openai_kv.model_runner.activations import DryStep, step_bytes
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.cpu import CpuBackend
from openai_kv.model_runner.attention.grouped import GroupedStep
from openai_kv.model_runner.attention.interface import PagedStep
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.attention.reads import AttentionReads
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.choice import brgemm_rows
from openai_kv.model_runner.fused.optimize import optimize
from openai_kv.model_runner.fused.quantize import quantize
from openai_kv.model_runner.graphs import CudaRecorder, DecodeGraphs, GraphLimits, Record, record_decode
from openai_kv.model_runner.hidden_blocks import HiddenBlocks
from openai_kv.model_runner.hidden_slots import HiddenSlots
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.kv_formats import kv_format
from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.model_runner.loader import CausalLM, load_model, resolve_device
from openai_kv.model_runner.memory import return_freed
from openai_kv.model_runner.model_info import model_info
from openai_kv.model_runner.pooling import pool
from openai_kv.model_runner.pools import PoolPlan
from openai_kv.model_runner.probe import check, check_invariant, measure
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.model_runner.sizing import check_format
from openai_kv.model_runner.step_sampling import StepSampling
from openai_kv.model_runner.tier_blocks import TierBlocks
from openai_kv.model_runner.tier_content import choose_restorer, staged_inputs
from openai_kv.model_runner.transfer import to_device
from openai_kv.model_runner.wanted_rows import wanted_rows
from openai_kv.outputs import BlockCopy, ModelRunnerOutput, ScheduledRequest, SchedulerOutput

LEADING_BLOCKS = 32  # few, as sorting costs time in each step


class ModelRunner:
    """The model, its KV pool, its hidden slots and what is staged for tiers; between steps nothing else is kept."""

    def __init__(
        self,
        model: CausalLM,
        backend: AttentionBackend,
        name: str,
        settings: RunnerSettings,
        record: Record | None = None,
    ) -> None:
        """`model` lies on its device; `record`: how decode steps are recorded, None: not at all.

        Raises ModelLoadError if our attention doesn't compute what its own does.
        """
        shapes = measure(model)
        check(model, backend)
        self.model, self.backend = model, backend
        self.device = model.model.device
        chosen = kv_format(settings.kv_cache_dtype, model.model.dtype)
        check_format(chosen, settings, backend)
        self.hidden_slots = HiddenSlots(settings.num_hidden_slots, shapes.hidden_size, model.model.dtype, self.device)
        longest = min(filter(None, (settings.max_model_len, model.max_model_len)), default=None)
        dry = DryStep(model, backend, shapes.layers, chosen, longest)
        reserved = step_bytes(dry, settings.max_num_batched_tokens, settings.max_num_seqs)
        plan = PoolPlan.of(settings, shapes, chosen, model.model.dtype, longest)
        self.groups = plan.groups
        whole = not self.groups.window  # blocks are of all layers
        restorer = choose_restorer(model, backend, settings, shapes.layers, chosen) if whole else None
        staged = None if restorer is None else staged_inputs(restorer, settings, self.device)
        self.kv_pool, self.window_pool = plan.allocate(self.device, reserved, spare_blocks=int(record is not None))
        self._sampling = StepSampling(model)
        hidden = None if restorer is None or staged is None else HiddenBlocks(restorer, staged, self.kv_pool)
        self.tier_blocks = hidden or TierBlocks(self.kv_pool)
        self.window_blocks = None if self.window_pool is None else TierBlocks(self.window_pool)
        self.info = model_info(model, shapes, backend, name, self.kv_pool, plan, hidden)
        self._needs_attention = settings.needs_attention
        self._reads = AttentionReads.of(shapes.layers, shapes.windows, chosen, settings.block_size)
        self._graphs = self._record(record, settings.max_num_seqs) if record else None

    @classmethod
    def load(cls, path: Path, name: str, settings: RunnerSettings) -> "ModelRunner":
        """Load the transformers folder at `path`; `name` is what it is called. Raises ModelLoadError, ConfigError."""
        if num_cpus() < torch.get_num_threads():  # torch knows of no cgroup's limit
            torch.set_num_threads(num_cpus())
        device = resolve_device(settings.device)
        model = load_model(path, dtype=settings.dtype, device=device, trust_remote_code=settings.trust_remote_code)
        invariant = settings.batch_invariant
        backend = select_backend(
            settings.attention_backend,
            device,
            settings.cache_dir,
            batch_invariant=invariant,
            block_size=settings.block_size,
            coded=kv_format(settings.kv_cache_dtype, model.model.dtype).coded,
        )
        if settings.optimize and isinstance(backend, CpuBackend):
            model = optimize(model, 0 if invariant else brgemm_rows())
        if settings.quantization != "none":
            model = quantize(model, settings.quantization)
        return_freed()
        record = CudaRecorder() if device.type == "cuda" and settings.cuda_graphs else None
        runner = cls(model, backend, name, settings, record)
        if invariant:
            check_invariant(model, backend)
        return runner

    @property
    def num_window_blocks(self) -> int:
        """With the null block; 0: there is no window group."""
        return 0 if self.window_pool is None else self.window_pool.num_blocks

    @torch.inference_mode()
    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        """Saves, copies, loads, the rows' forward pass, then what each request wants: a token, its part of a vector."""
        saved = block_transfer.read(scheduled.saves, self.tier_blocks, self.window_blocks)
        self._copy(scheduled.copies)
        block_transfer.write(scheduled.loads, self.tier_blocks, self.window_blocks)
        rows = self._read_slots(scheduled.requests)
        running = sorted((request for request in scheduled.requests if request.token_ids), key=_leading_blocks)
        if not running:
            sampled, pooled = self._sampling.sample(scheduled.requests, rows), pool(scheduled.requests, rows)
            return ModelRunnerOutput(sampled.token_ids, logprobs=sampled.logprobs, pooled=pooled, saved=saved)
        windowed = self.window_pool is not None
        batch = InputBatch.build(running, self.kv_pool.block_size, self.device, windowed=windowed)
        step = self._new_step(batch, wanted_rows(running, self.device))
        states = self._forward(batch, step, running)
        self._write_slots(running, states[batch.last_rows])
        rows |= _by_request(running, states)
        sampled = self._sampling.sample(scheduled.requests, rows)
        return ModelRunnerOutput(
            sampled.token_ids,
            step.mass_by_block(),
            self._reads.in_step(batch.metadata),
            sampled.logprobs,
            self._sampling.prompt_logprobs(running, rows),
            pool(scheduled.requests, rows),
            saved,
        )

    def _new_step(self, batch: InputBatch, wanted: Tensor | None = None) -> GroupedStep:
        """Once for each step: pools prepare for its rows."""
        full = self._in_pool(self.kv_pool, batch.metadata, wanted)
        if self.window_pool is None or batch.window is None:
            return GroupedStep(self.groups, full)
        return GroupedStep(self.groups, full, self._in_pool(self.window_pool, batch.window, wanted))

    def _in_pool(self, pool: KVPool, metadata: AttentionMetadata, wanted: Tensor | None) -> PagedStep:
        return PagedStep(self.backend, pool, pool.prepare(metadata), self._new_mass(pool), wanted)

    def _new_mass(self, pool: KVPool) -> Tensor | None:
        return torch.zeros(pool.num_blocks, device=self.device) if self._needs_attention else None

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        self.kv_pool.copy(copies)
        self.tier_blocks.unseen(copy.target for copy in copies)
        if self.window_pool is not None:
            self.window_pool.copy([BlockCopy(c.window_source, c.window_target, c.num_tokens) for c in copies])

    def _forward(self, batch: InputBatch, step: GroupedStep, running: Sequence[ScheduledRequest]) -> Tensor:
        """The final hidden states [T, hidden_size], right in the wanted rows."""
        if self._graphs is not None and self._graphs.takes(batch):
            size = self.kv_pool.block_size
            self.tier_blocks.unseen(request.block_ids[request.num_computed_tokens // size] for request in running)
            return self._graphs.forward(batch)
        with self.tier_blocks.watching(running):
            return self._run_layers(batch, step)

    def _run_layers(self, batch: InputBatch, step: GroupedStep | None = None) -> Tensor:
        step = step or self._new_step(batch)
        return self.model.hidden_states(batch.token_ids, batch.positions, step.attention)

    def _record(self, record: Record, max_rows: int) -> DecodeGraphs | None:
        """None where steps have to be run: attention goes by more than tensors, its mass or a window group is there."""
        if self._needs_attention or self.window_pool is not None or not self.backend.replayable:
            return None
        if not self.kv_pool.layers[0].key.dtype.is_floating_point:
            return None
        scratch_block = self.kv_pool.num_blocks  # the spare one
        limits = GraphLimits(max_rows, self.info.max_model_len, self.kv_pool.block_size, scratch_block)
        return record_decode(self._run_layers, limits, self.device, record)

    def _read_slots(self, requests: Sequence[ScheduledRequest]) -> dict[str, Tensor]:
        """Of each exact hit the stored state, as its only row [1, hidden_size]."""
        hits = {request.request_id: request.hidden_slot for request in requests if request.hidden_slot is not None}
        if not hits:
            return {}
        return dict(zip(hits, self.hidden_slots.read(list(hits.values()))[:, None], strict=True))

    def _write_slots(self, running: Sequence[ScheduledRequest], states: Tensor) -> None:
        stores = {row: request.store_slot for row, request in enumerate(running) if request.store_slot is not None}
        if stores:
            chosen = states[to_device(list(stores), torch.int64, self.device)]
            self.hidden_slots.write(list(stores.values()), chosen)


def _leading_blocks(request: ScheduledRequest) -> tuple[int, ...]:
    """Requests that begin with the same blocks come one after another: attention reads these once for all of them."""
    return tuple(request.block_ids[:LEADING_BLOCKS])


def _by_request(running: Sequence[ScheduledRequest], states: Tensor) -> dict[str, Tensor]:
    """states [T, hidden_size], cut into the rows of each request."""
    parts = states.split([len(request.token_ids) for request in running])
    return {request.request_id: part for request, part in zip(running, parts, strict=True)}
