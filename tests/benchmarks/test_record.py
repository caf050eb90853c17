"""What is written beside results."""

import json
from pathlib import Path

import pytest

from benchmarks.record import command, save


def test_a_record_says_where_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/home/me/benchmarks/kv_tasks.py", "/data/text", "--items", "3"])
    save(tmp_path / "found.json", [1.5])
    record = json.loads((tmp_path / "found.json").read_text())
    assert record["command"] == "python benchmarks/kv_tasks.py text --items 3"
    assert record["results"] == [1.5] and record["machine"]["threads"] > 0


def test_a_command_can_be_pasted_into_a_shell() -> None:
    assert command(["a.py", "two words"]) == "python benchmarks/a.py 'two words'"
