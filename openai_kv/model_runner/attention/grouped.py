"""GroupedStep: attention where some layers keep a window only, in a pool and with block tables of their own."""

from dataclasses import dataclass

import torch
from torch import Tensor

from openai_kv.model_runner.attention.backend import AttentionOptions
from openai_kv.model_runner.attention.interface import AttentionStep, PagedStep
from openai_kv.model_runner.layer_groups import LayerGroups


@dataclass(frozen=True, slots=True, eq=False)
class GroupedStep:
    """Each layer attends in the step of its group; `window` is None where there is only one."""

    groups: LayerGroups
    full: PagedStep
    window: PagedStep | None = None

    @property
    def attention(self) -> AttentionStep:
        """What a forward pass is handed."""
        return self.full if self.window is None else self

    def attend(self, index: int, query: Tensor, key: Tensor, value: Tensor, options: AttentionOptions) -> Tensor:
        step, index = self.part(index)
        return step.attend(index, query, key, value, options)

    def part(self, index: int) -> tuple[PagedStep, int]:
        """The step of a layer's group, and which of its layers it is."""
        step = self.window if self.window is not None and self.groups.windowed[index] else self.full
        return step, self.groups.indices[index]

    def mass_by_block(self) -> dict[int, float]:
        """Attention mass by blocks of the full group, that of their window parts included; empty if none was wanted."""
        if self.full.mass is None:
            return {}
        tables, mass = self.full.metadata.block_tables.long(), self.full.mass
        if self.window is not None and self.window.mass is not None:
            parts = self.window.metadata.block_tables.long()
            seen, mass = parts > 0, mass.clone()
            mass[tables[seen]] = self.full.mass[tables[seen]] + self.window.mass[parts[seen]]
        blocks = torch.unique(tables)
        return dict(zip(blocks.tolist(), mass[blocks].tolist(), strict=True))
