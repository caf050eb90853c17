"""Markdown tables, and their places in a page: between <!-- NAME --> and <!-- end -->."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, all others to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(ratio: float) -> str:
    """.1234"""
    return f"{ratio:.4f}".removeprefix("0")


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Each in the place of its name. Raises LookupError, before anything is written: the page lacks one."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = fill(text, name, table)
    page.write_text(text, encoding="utf-8")


def fill(text: str, name: str, table: str) -> str:
    before, start, rest = text.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not end:
        raise LookupError(f"no <!-- {name} --> ... <!-- end -->")
    return f"{before}{start}{table}\n{end}{after}"
