"""StepPlan: one step while it is being decided."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from openai_kv.outputs import BlockCopy, BlockLoad, ScheduledRequest
from openai_kv.request import Request


@dataclass(slots=True)
class StepPlan:
    """Decoding sequences come first: `budget` is what is left for prefill."""

    budget: int = 0
    requests: dict[str, ScheduledRequest] = field(default_factory=dict)
    copies: list[BlockCopy] = field(default_factory=list)
    preempted: bool = False
    _loads: dict[str, Sequence[BlockLoad]] = field(default_factory=dict)
    _computed_before: dict[str, int] = field(default_factory=dict)

    @property
    def loads(self) -> tuple[BlockLoad, ...]:
        return tuple(load for loads in self._loads.values() for load in loads)

    def load(self, request: Request, loads: Sequence[BlockLoad]) -> None:
        """Have these written for `request`, whose `num_computed_tokens` moves on only afterwards."""
        self._loads[request.request_id] = loads
        self._computed_before[request.request_id] = request.num_computed_tokens

    def undo_loads(self, request: Request) -> None:
        """It loses its blocks before anything was written to them: nothing of that may be taken for cached."""
        if self._loads.pop(request.request_id, None) is not None:
            request.num_computed_tokens = self._computed_before[request.request_id]
