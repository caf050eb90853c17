"""Results as records, JSON, CSV and a table."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.table import Table

from openai_kv.simulate.cost import CostModel
from openai_kv.simulate.result import Result

FORMAT = 1
RATIO_DIGITS = 6
SECONDS_DIGITS = 3


def record(result: Result) -> dict[str, Any]:
    """One row, flat; docs/simulate.md has the meaning of each field."""
    case, tally = result.case, result.tally
    capacity = case.capacity_blocks
    return {
        "trace": result.trace_name,
        "trace_format": result.trace_format,
        "block_tokens": result.block_tokens,
        "policy": case.policy,
        "mode": case.mode,
        "half": case.half,
        "capacity_blocks": capacity,
        "capacity_tokens": None if capacity is None else capacity * result.block_tokens,
        "requests": tally.requests,
        "blocks": tally.blocks,
        "hit_blocks": tally.hit_blocks,
        "block_hit_ratio": round(result.block_hit_ratio, RATIO_DIGITS),
        "tokens": tally.tokens,
        "hit_tokens": tally.hit_tokens,
        "token_hit_ratio": round(result.token_hit_ratio, RATIO_DIGITS),
        "prefill_seconds": round(tally.prefill_seconds, SECONDS_DIGITS),
        "saved_prefill_seconds": round(tally.saved_prefill_seconds, SECONDS_DIGITS),
        "waited_requests": tally.waited_requests,
        "wait_seconds": round(tally.wait_seconds, SECONDS_DIGITS),
        "evictions": result.evictions,
        "policy_errors": result.policy_errors,
        "decision_seconds": round(result.decision_seconds, SECONDS_DIGITS),
        "replay_seconds": round(result.replay_seconds, SECONDS_DIGITS),
    }


def write_json(path: Path, results: Sequence[Result], cost: CostModel) -> None:
    document = {"format": FORMAT, "cost": asdict(cost), "results": [record(result) for result in results]}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def write_csv(path: Path, results: Sequence[Result]) -> None:
    rows = [record(result) for result in results]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def make_tables(results: Sequence[Result]) -> Iterator[Table]:
    """One for each trace and mode."""
    for (trace, mode), group in groupby(results, key=lambda result: (result.trace_name, result.case.mode)):
        members = list(group)
        table = Table(
            title=f"{trace}, {mode}, {members[0].case.half}", title_justify="left", box=None, padding=(0, 1, 0, 0)
        )
        table.add_column("policy", overflow="fold")
        for name in ("capacity", "hits", "ratio", "tokens", "saved s", "evictions", "us each", "run s"):
            table.add_column(name, justify="right", no_wrap=True)
        for result in members:
            table.add_row(*cells(result))
        yield table


def cells(result: Result) -> list[str]:
    """Hit blocks, their ratio and that of tokens; a decision in microseconds, the whole replay in seconds."""
    case, tally = result.case, result.tally
    return [
        case.policy,
        "unlimited" if case.capacity_blocks is None else f"{case.capacity_blocks:,}",
        f"{tally.hit_blocks:,}",
        f"{result.block_hit_ratio:.4f}",
        f"{result.token_hit_ratio:.4f}",
        f"{tally.saved_prefill_seconds:,.0f}",
        f"{result.evictions:,}",
        f"{1e6 * result.decision_seconds / result.evictions:.1f}" if result.evictions else "",
        f"{result.replay_seconds:.1f}",
    ]
