"""What a live run and the replays of its recording found, side by side: numbers, tables, JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from typing import Any

from rich.table import Table

from benchmarks.drive import Answer, Drive
from benchmarks.page import markdown
from openai_kv.simulate.result import Result

HEAD = ("policy", "tokens", "blocks", "simulated", "computed", "p50 s", "p95 s", "evicted", "wall s")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy, all rounds. `replays`: of the recordings, none for what a trace can't tell."""

    policy: str
    block_size: int
    drives: tuple[Drive, ...]
    replays: tuple[Result, ...]

    @property
    def answers(self) -> list[Answer]:
        return [answer for drive in self.drives for answer in drive.answers]

    @property
    def token_hit_ratio(self) -> float:
        return sum(a.cached_tokens for a in self.answers) / sum(a.prompt_tokens for a in self.answers)

    @property
    def block_hit_ratio(self) -> float:
        """Of whole blocks, as the replay counts."""
        size = self.block_size
        return sum(a.cached_tokens // size for a in self.answers) / sum(a.prompt_tokens // size for a in self.answers)

    @property
    def simulated(self) -> float | None:
        blocks = sum(replay.tally.blocks for replay in self.replays)
        return sum(replay.tally.hit_blocks for replay in self.replays) / blocks if blocks else None

    @property
    def computed_tokens(self) -> int:
        return sum(a.prompt_tokens - a.cached_tokens for a in self.answers)

    def ttft(self, share: float) -> float:
        times = sorted(answer.ttft for answer in self.answers)
        return times[min(int(len(times) * share), len(times) - 1)]


def record(outcome: Outcome) -> dict[str, Any]:
    return {
        "policy": outcome.policy,
        "requests": len(outcome.answers),
        "prompt_tokens": sum(answer.prompt_tokens for answer in outcome.answers),
        "computed_tokens": outcome.computed_tokens,
        "token_hit_ratio": round(outcome.token_hit_ratio, 6),
        "block_hit_ratio": round(outcome.block_hit_ratio, 6),
        "simulated_block_hit_ratio": outcome.simulated and round(outcome.simulated, 6),
        "ttft_p50_seconds": round(outcome.ttft(0.5), 3),
        "ttft_p95_seconds": round(outcome.ttft(0.95), 3),
        "evictions": sum(drive.evictions for drive in outcome.drives),
        "seconds": [round(drive.seconds, 1) for drive in outcome.drives],
    }


def cells(outcome: Outcome) -> list[str]:
    row = record(outcome)
    simulated = row["simulated_block_hit_ratio"]
    return [
        outcome.policy,
        f"{row['token_hit_ratio']:.3f}",
        f"{row['block_hit_ratio']:.3f}",
        "" if simulated is None else f"{simulated:.3f}",
        f"{row['computed_tokens']:,}",
        f"{row['ttft_p50_seconds']:.2f}",
        f"{row['ttft_p95_seconds']:.2f}",
        f"{row['evictions']:,}",
        f"{sum(row['seconds']):.0f}",
    ]


def by_hits(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return sorted(outcomes, key=lambda outcome: -outcome.block_hit_ratio)


def make_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(HEAD[0], box=None)
    for name in HEAD[1:]:
        table.add_column(name, justify="right")
    for outcome in by_hits(outcomes):
        table.add_row(*cells(outcome))
    return table


def make_markdown(outcomes: Sequence[Outcome], facts: Mapping[str, Any]) -> str:
    """The table, under it in words what was run."""
    told = "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    return f"{markdown(HEAD, [cells(outcome) for outcome in by_hits(outcomes)])}\n\n{told}."


def agreement(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Both rankings, and how far they agree."""
    both = [outcome for outcome in outcomes if outcome.simulated is not None]
    simulated = sorted(both, key=lambda outcome: -(outcome.simulated or 0))
    yield f"live:      {' > '.join(outcome.policy for outcome in by_hits(both))}"
    yield f"simulated: {' > '.join(outcome.policy for outcome in simulated)}"
    yield f"Kendall's tau-b {tau_of(both):.2f} over {len(both)} policies"


def tau_of(outcomes: Sequence[Outcome]) -> float:
    pairs = [(outcome.block_hit_ratio, outcome.simulated) for outcome in outcomes if outcome.simulated is not None]
    return kendall_tau([live for live, _ in pairs], [simulated for _, simulated in pairs])


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float:
    """tau-b (Kendall 1945): 1 the same order, -1 the opposite one; ties count for neither. 0 if one is all ties."""
    signs = [(sign(a - b), sign(x - y)) for (a, x), (b, y) in combinations(zip(first, second, strict=True), 2)]
    untied = sqrt(sum(abs(a) for a, _ in signs) * sum(abs(b) for _, b in signs))
    return sum(a * b for a, b in signs) / untied if untied else 0.0


def sign(value: float) -> int:
    return (value > 0) - (value < 0)
