"""What `openai-kv plugins` prints: a line for each plugin, and below it one for each option, none ever broken."""

import json
from collections.abc import Iterator, Sequence

from openai_kv.plugins import PluginReport

COLUMNS = ("name", "version", "source", "registers", "active")


def plugin_lines(reports: Sequence[PluginReport]) -> Iterator[str]:
    rows = [COLUMNS, *map(_cells, reports)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    yield _line(rows[0], widths)
    for row, report in zip(rows[1:], reports, strict=True):
        yield _line(row, widths)
        yield from (f"    {name} = {as_written(value)}" for name, value in report.options.items())


def as_written(value: object) -> str:
    """A plugin's option as one writes it into the file or a variable; the quotes of a text are left out."""
    return json.dumps(value) if isinstance(value, bool | list | dict) else str(value)


def _cells(report: PluginReport) -> tuple[str, ...]:
    hooks = ", ".join(hook.removeprefix("register_") for hook in report.hooks)
    return report.name, report.version, report.source, hooks, "yes" if report.active else ""


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
