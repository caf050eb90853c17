"""Results as a table and as JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from openai_kv.bench.result import Result, percentile

FORMAT = 1
COLUMNS = ("asked", "tok/s", "TTFT p50", "p95", "ITL p50", "p99", "prompt", "cached")


def record(result: Result) -> dict[str, Any]:
    """One phase, flat; docs/bench.md has the meaning of each field. Milliseconds."""
    return {
        "label": result.label,
        "round": result.round,
        "requests": len(result.replies),
        "failed": len(result.errors),
        "wall_s": round(result.wall, 3),
        "output_tokens_per_s": round(result.output_rate, 2),
        "prompt_tokens": result.prompt_tokens,
        "cached_tokens": result.cached_tokens,
        "output_tokens": result.output_tokens,
        **spread("ttft", result.ttfts),
        **spread("itl", result.gaps),
        "ttfts_ms": [round(1e3 * value, 2) for value in result.ttfts],
    }


def spread(name: str, values: Sequence[float]) -> dict[str, float | None]:
    found = {f"{name}_p{percent}_ms": percentile(values, percent) for percent in (50, 95, 99)}
    return {key: None if value is None else round(1e3 * value, 2) for key, value in found.items()}


def write_json(path: Path, results: Sequence[Result], asked: Mapping[str, Any]) -> None:
    document = {"format": FORMAT, **asked, "results": [record(result) for result in results]}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def make_table(results: Sequence[Result], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(result.label, *cells(record(result)))
    return table


def cells(row: Mapping[str, Any]) -> list[str]:
    return [
        str(row["requests"]),
        f"{row['output_tokens_per_s']:.1f}",
        *(show(row[name]) for name in ("ttft_p50_ms", "ttft_p95_ms", "itl_p50_ms", "itl_p99_ms")),
        f"{row['prompt_tokens']:,}",
        "" if row["cached_tokens"] is None else f"{row['cached_tokens']:,}",
    ]


def show(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.1f}"
