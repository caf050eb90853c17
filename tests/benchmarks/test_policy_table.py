"""The tables of docs/policies.md: what a small sweep writes, and that the page knows every policy."""

import re
from pathlib import Path

import pytest

from benchmarks import policy_table
from benchmarks.page import write_tables
from benchmarks.policy_counts import load
from benchmarks.policy_markdown import tables

ROOT = Path(__file__).parent.parent.parent
TRACE = ROOT / "tests" / "data" / "conversation_first300.jsonl"
PLACES = ("cost", *(f"{kind}-{half}" for kind in ("hits", "gap", "summary") for half in ("all", "second")))


def cells(table: str, policy: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {policy} |"))
    return line.strip("| ").split(" | ")


def test_a_sweep_fills_its_places(tmp_path: Path) -> None:
    page, results = tmp_path / "page.md", tmp_path / "results.json"
    page.write_text("".join(f"<!-- {name} -->\n<!-- end -->\n" for name in PLACES))
    sizes = ["--capacity", "100", "--capacity", "4000", "--jobs", "1"]
    files = ["--results", str(results), "--page", str(page)]
    policies = [word for policy in ("opt", "lru", "fifo") for word in ("--policy", policy)]
    policy_table.main([str(TRACE), *sizes, *policies, *files])
    made = tables(load(results))
    assert set(made) == set(PLACES)
    assert all(table in page.read_text() for table in made.values())
    assert cells(made["hits-all"], "lru") == ["lru", f"{299 / 8490:.4f}"[1:], f"{445 / 8490:.4f}"[1:], ".0438"]
    assert cells(made["gap-all"], "opt") == ["opt", "+100%", "+100%"]
    assert cells(made["summary-second"], "lru")[2:] == ["+0.0%"] * 4
    assert {path.suffix for path in tmp_path.glob("policies.*")} == {".png", ".svg"}
    before = results.read_text()
    policy_table.main(files)  # without a trace: nothing is replayed
    assert results.read_text() == before


def test_a_page_without_the_place_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- a -->\n<!-- end -->\n")
    with pytest.raises(LookupError, match="<!-- b -->"):
        write_tables(page, {"a": "| x |", "b": "| y |"})
    assert page.read_text() == "<!-- a -->\n<!-- end -->\n"


def test_without_lru_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    files = ["--results", str(tmp_path / "r"), "--page", str(tmp_path / "p")]
    with pytest.raises(LookupError, match="lru and opt"):
        policy_table.main([str(TRACE), "--policy", "fifo", "--capacity", "50", "--jobs", "1", *files])
    assert len(load(tmp_path / "r")) == 1


def test_the_page_explains_every_policy_and_no_other() -> None:
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    built_in = sorted(policy.name for policy in policy_table.built_in_policies())
    assert sorted(re.findall(r"^### `(\w+)`$", text, re.MULTILINE)) == built_in
    choices = text[text.index("## Which one") : text.index("## One by one")]
    assert set(re.findall(r"\| `(\w+)`", choices)) == set(built_in)
    assert all(f"<!-- {name} -->" in text for name in (*PLACES, "live"))
