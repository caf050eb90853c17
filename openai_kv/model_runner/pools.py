"""The pools of a model's layer groups: what lies in them, how large they are, and they themselves."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from openai_kv.model_runner.kv_formats import KVFormat
from openai_kv.model_runner.kv_pool import KVPool, LayerShape
from openai_kv.model_runner.layer_groups import LayerGroups
from openai_kv.model_runner.open_blocks import OpenSlots
from openai_kv.model_runner.pool_sizes import PoolShares
from openai_kv.model_runner.probe import ModelShapes
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.model_runner.sizing import open_slots_of, pool_sizes_of, shares_of


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What is decided before a byte is taken."""

    settings: RunnerSettings
    layers: Sequence[LayerShape]
    kv_format: KVFormat
    groups: LayerGroups
    open_slots: OpenSlots
    shares: PoolShares

    @classmethod
    def of(
        cls,
        settings: RunnerSettings,
        shapes: ModelShapes,
        kv_format: KVFormat,
        dtype: torch.dtype,
        longest: int | None,
    ) -> "PoolPlan":
        """`dtype`: of the weights; `longest`: tokens of a sequence, None for any."""
        groups = LayerGroups.of(shapes.windows, longest, settings.window_layout)
        open_slots = open_slots_of(settings, dtype)
        shares = shares_of(settings, shapes.layers, groups, kv_format, open_slots, longest)
        return cls(settings, shapes.layers, kv_format, groups, open_slots, shares)

    def allocate(self, device: torch.device, reserved: int, *, spare_blocks: int) -> tuple[KVPool, KVPool | None]:
        """The full group's pool and the window group's; `reserved` bytes are left for what a step takes.

        Nobody hands out the `spare_blocks` of the first. Raises ConfigError.
        """
        sizes = pool_sizes_of(self.settings, self.shares, device, reserved)
        allocate = partial(
            KVPool.allocate,
            block_size=self.settings.block_size,
            kv_format=self.kv_format,
            device=device,
            open_slots=self.open_slots,
        )
        full = allocate(self.groups.full(self.layers), num_blocks=sizes.num_blocks, spare_blocks=spare_blocks)
        if not self.groups.window:
            return full, None
        return full, allocate(self.groups.in_window(self.layers), num_blocks=sizes.num_window_blocks)
