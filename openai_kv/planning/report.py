"""A plan as a table and as JSON."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from openai_kv.model_runner.kv_pool import LayerShape
from openai_kv.model_runner.outline import ModelOutline
from openai_kv.planning.plan import FormatPlan, Plan

FORMAT = 1
COLUMNS = ("KV format", "B/token", "block", "blocks", "tokens", "fit", "KV needed", "with weights")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def record(plan: Plan) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(plan.outline), **asdict(plan.wish), "formats": [*map(asdict, plan.formats)]}


def write_json(path: Path, plan: Plan) -> None:
    path.write_text(json.dumps(record(plan), indent=2) + "\n", encoding="utf-8")


def describe(outline: ModelOutline) -> str:
    """The model in a line, the formula of its K and V in another, and what keeps only a window in a third."""
    dtype = outline.dtype if outline.quantization == "none" else f"{outline.dtype} and {outline.quantization}"
    weights = f"{outline.num_parameters / 1e6:,.1f} M parameters in {dtype}: {show_bytes(outline.weight_bytes)}"
    lines = [f"{outline.architecture}, {weights}", f"K and V of a token: {formula(outline)}"]
    if outline.window:
        windowed, total = len(outline.window_layers), len(outline.layers)
        lines.append(f"{windowed} of {total} layers keep the last {outline.window:,} tokens only")
    return "\n".join(lines)


def formula(outline: ModelOutline) -> str:
    """As one would write it for a model whose layers are all alike; by layer where they differ."""
    kinds = dict.fromkeys(outline.layers)
    terms = [_term(outline.layers.count(kind), kind) for kind in kinds]
    return f"{' + '.join(terms)} = {sum(shape.num_elements for shape in outline.layers):,} numbers"


def _term(count: int, shape: LayerShape) -> str:
    if shape.key_dim == shape.value_dim:
        return f"2 * {count} layers * {shape.num_kv_heads} heads * {shape.key_dim}"
    return f"{count} layers * {shape.num_kv_heads} heads * ({shape.key_dim} + {shape.value_dim})"


def make_table(plan: Plan) -> Table:
    wish = plan.wish
    memory = "as needed" if wish.memory is None else show_bytes(wish.memory)
    asked = f"{wish.concurrency} x {wish.context:,} tokens, blocks of {wish.block_size}, memory: {memory}"
    table = Table(title=asked, title_justify="left", box=None, padding=(0, 1, 0, 0))
    table.add_column(COLUMNS[0], no_wrap=True)
    for name in COLUMNS[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in plan.formats:
        table.add_row(*cells(row, plan.outline.weight_bytes))
    return table


def cells(row: FormatPlan, weight_bytes: int) -> tuple[str, ...]:
    """Of a model with a window group, blocks are counted as those of the full group + those of the other."""
    return (
        row.kv_cache_dtype,
        f"{row.token_bytes:,.0f}",
        show_bytes(row.block_bytes + row.window_block_bytes),
        f"{row.num_blocks:,}" + (f"+{row.num_window_blocks:,}" if row.num_window_blocks else ""),
        f"{row.num_tokens:,}",
        f"{row.conversations:,}",
        show_bytes(row.needed_bytes),
        show_bytes(row.needed_bytes + weight_bytes),
    )


def show_bytes(number: float) -> str:
    """In the largest unit that leaves at least 1."""
    for unit in UNITS[:-1]:
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} {UNITS[-1]}"
