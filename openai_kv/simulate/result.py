"""What is replayed, and what came out; docs/simulate.md has the table of fields."""

from dataclasses import dataclass, field
from typing import Literal

from openai_kv.simulate.cost import CostModel

Half = Literal["all", "first", "second"]
Mode = Literal["radix", "live", "flat-head", "flat-tail"]
OPT = "opt"
INFINITE = "infinite"
BOUNDS = (OPT, INFINITE)  # what no policy can do better than, always replayed one request at a time


@dataclass(frozen=True, slots=True)
class Case:
    """One replay. `policy`: a name, maybe with options (`slru:protected_share=0.5`). No capacity: without limit."""

    trace: str
    policy: str
    capacity_blocks: int | None
    mode: Mode = "radix"
    half: Half = "all"
    cost: CostModel = field(default_factory=CostModel)


@dataclass(slots=True)
class Tally:
    """Sums over the counted requests."""

    requests: int = 0
    blocks: int = 0
    hit_blocks: int = 0
    tokens: int = 0
    hit_tokens: int = 0
    prefill_seconds: float = 0.0
    saved_prefill_seconds: float = 0.0
    waited_requests: int = 0
    wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Result:
    """Evictions and decisions are of the whole replay, `tally` of the counted half; `second_half` is there always."""

    case: Case
    trace_name: str
    trace_format: str
    block_tokens: int
    tally: Tally
    second_half: Tally
    evictions: int
    policy_errors: int
    decision_seconds: float
    replay_seconds: float

    @property
    def block_hit_ratio(self) -> float:
        return self.tally.hit_blocks / max(self.tally.blocks, 1)

    @property
    def token_hit_ratio(self) -> float:
        return self.tally.hit_tokens / max(self.tally.tokens, 1)
