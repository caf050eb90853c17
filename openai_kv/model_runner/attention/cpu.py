"""The C++ attention operator as a backend: one call per layer, straight over the block tables."""

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from openai_kv.model_runner.attention.backend import AttentionOptions, LayerCache
from openai_kv.model_runner.attention.metadata import AttentionMetadata
from openai_kv.model_runner.open_blocks import add_keys
from openai_kv.model_runner.operator_build import build_operator, load_operator


class CpuBackend:
    """Runs AttentionBackend.forward in C++ on torch's threads, with AVX-512, AVX2 or neither as the machine has it.

    `batch_invariant`: a row is computed in one way, whatever rows of its request come with it; prompts take longer.
    `width`: at most so many floats per vector (16, 8 or 4; 0: as many as there are), for tests.
    """

    name = "cpu"
    replayable = True

    def __init__(self, operator: Callable[..., Tensor], width: int = 0, *, batch_invariant: bool = False) -> None:
        self.operator = operator
        self.batch_invariant = batch_invariant
        self._width = width

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        layer: LayerCache,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        mass: Tensor | None,
    ) -> Tensor:
        if metadata.open is not None:
            add_keys(layer, key, metadata.open)
        return self.operator(
            query,
            key,
            value,
            layer.key,
            layer.value,
            layer.key_scales,
            layer.value_scales,
            layer.open_keys,
            metadata.open and metadata.open.own_slots,
            metadata.slot_mapping,
            metadata.block_tables,
            metadata.query_starts,
            metadata.context_lens,
            options.scale,
            options.sliding_window or 0,
            options.softcap or 0.0,
            None if options.sinks is None else options.sinks.float(),
            mass,
            self.batch_invariant,
            self._width,
        )


def load_cpu_backend(cache_dir: Path, progress: Callable[[str], None], *, batch_invariant: bool = False) -> CpuBackend:
    """Builds the operator into `cache_dir` if need be. Raises OperatorBuildError, saying why."""
    return CpuBackend(load_operator(build_operator(cache_dir, progress)), batch_invariant=batch_invariant)
