"""The kept results of replays: one line a case in a JSON file, from which tables and plots are made."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai_kv.simulate.report import record
from openai_kv.simulate.result import Case, Result, Tally

NAMED = ("trace", "trace_format", "block_tokens", "policy", "capacity_blocks")
COUNTED = ("requests", "blocks", "hit_blocks", "tokens", "hit_tokens")
MEASURED = ("evictions", "policy_errors", "decision_seconds", "replay_seconds")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One replay; the trace by its name."""

    trace: str
    policy: str
    capacity: int


Sheet = Mapping[Cell, Result]


def to_sheet(results: Iterable[Result]) -> dict[Cell, Result]:
    return {cell_of(result): result for result in results}


def cell_of(result: Result) -> Cell:
    return Cell(result.trace_name, result.case.policy, result.case.capacity_blocks or 0)


def load(path: Path) -> dict[Cell, Result]:
    """Nothing if there is no such file yet."""
    rows = json.loads(path.read_text(encoding="utf-8"))["results"] if path.exists() else []
    return to_sheet(map(restore, rows))


def save(path: Path, sheet: Sheet) -> None:
    rows = [json.dumps(keep(sheet[cell])) for cell in sorted(sheet)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"format": 1, "results": [\n' + ",\n".join(rows) + "\n]}\n", encoding="utf-8")


def keep(result: Result) -> dict[str, Any]:
    row = record(result)
    halves = {"all": result.tally, "second": result.second_half}
    counts = {half: {name: getattr(tally, name) for name in COUNTED} for half, tally in halves.items()}
    return {**{name: row[name] for name in NAMED}, **counts, **{name: row[name] for name in MEASURED}}


def restore(row: Mapping[str, Any]) -> Result:
    """What `keep` kept, as a result again."""
    return Result(
        case=Case(row["trace"], row["policy"], row["capacity_blocks"]),
        trace_name=row["trace"],
        trace_format=row["trace_format"],
        block_tokens=row["block_tokens"],
        tally=Tally(**row["all"]),
        second_half=Tally(**row["second"]),
        **{name: row[name] for name in MEASURED},
    )
