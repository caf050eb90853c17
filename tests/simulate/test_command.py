"""The command: options to tables and files; what is documented is what is written."""

import csv
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openai_kv import cli
from openai_kv.errors import ConfigError
from openai_kv.simulate.readers import read_trace

DOCS = Path(__file__).parents[2] / "docs" / "simulate.md"


def mooncake(folder: Path) -> Path:
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 500, "input_length": 1200, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 900, "input_length": 600, "output_length": 5, "hash_ids": [0, 3]},
    ]
    path = folder / "mini.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_the_files_say_what_the_replay_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, files = mooncake(tmp_path), [tmp_path / f"out.{kind}" for kind in ("json", "csv", "png", "svg")]
    arguments = [
        "simulate",
        str(trace),
        "--policy",
        "lru,opt",
        "--policy",
        "infinite",
        "--capacity",
        "2,3",
        "--jobs",
        "1",
    ]
    flags = [
        part for flag, file in zip(("--json", "--csv", "--plot", "--plot"), files, strict=True) for part in (flag, file)
    ]
    assert cli.main([*arguments, *map(str, flags)]) == 0
    assert "lru" in capsys.readouterr().out
    results = json.loads(files[0].read_text())["results"]
    rows = {(row["policy"], row["capacity_blocks"]): (row["hit_blocks"], row["hit_tokens"]) for row in results}
    assert rows["lru", 3] == rows["infinite", None] == (3, 1024 + 512)
    assert [row["policy"] for row in results] == ["lru", "lru", "opt", "opt", "infinite"]
    with files[1].open() as file:
        assert [row["hit_blocks"] for row in csv.DictReader(file)] == [str(row["hit_blocks"]) for row in results]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files[3].read_bytes()
    table = re.search(r"^## Results\n(.*?)^## ", DOCS.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert table is not None
    cells = [line.split("|")[1] for line in table[1].splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(results[0])


def test_it_loads_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from openai_kv import cli; "
        f"code = cli.main(['simulate', {str(mooncake(tmp_path))!r}, '--policy', 'lru', '--capacity', '2']); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--policy", "nonesuch", "--capacity", "2"], "no plugin 'nonesuch'"),
        (["--policy", "lru"], "needs a --capacity"),
        (["--policy", "lru", "--capacity", "none"], "not a whole number above 0"),
        (["--policy", "lru", "--capacity", "2", "--live", "--flat"], "exclude each other"),
        (["--policy", "lru", "--capacity", "2", "--plot", "x.bmp"], "ends with neither .png nor .svg"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["simulate", str(mooncake(tmp_path)), *arguments]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert expected in line


QWEN: list[dict[str, Any]] = [
    {"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.1, "input_length": 40, "output_length": 12, "type": "text",
     "turn": 1, "hash_ids": [11, 12, 13]},
    {"chat_id": 8, "parent_chat_id": 7, "timestamp": 70.0, "input_length": 60, "output_length": 9, "type": "text",
     "turn": 2, "hash_ids": [11, 12, 14, 15]},
]  # fmt: skip


def test_qwen_bailian(tmp_path: Path) -> None:
    path = tmp_path / "qwen.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, QWEN)).encode()))
    trace = read_trace(path)
    assert (trace.name, trace.format, trace.block_tokens) == ("qwen", "qwen-bailian", 16)
    assert [(request.session_id, request.turn) for request in trace.requests] == [("7", 1), ("7", 2)]
    assert trace.requests[0].hash_ids[:2] == trace.requests[1].hash_ids[:2]


def test_conversations_with_local_ids_share_nothing(tmp_path: Path) -> None:
    leaf = {"t": 0.0, "in": 130, "out": 20, "hash_ids": [1, 2, 3]}
    for name in ("a", "b"):
        record = {
            "id": name,
            "block_size": 64,
            "hash_id_scope": "local",
            "requests": [leaf, {"requests": [{**leaf, "t": 2}]}],
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(record, indent=1))
    trace = read_trace(tmp_path)
    assert (trace.format, trace.block_tokens, len(trace.requests)) == ("kv-cache-tester", 64, 4)
    assert trace.num_different_blocks == 6
    assert [request.turn for request in trace.requests] == [1, 1, 2, 2]


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", "not json", '{"requests": 5}'])
def test_a_file_that_is_no_trace(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"trace .*bad\.json"):
        read_trace(path)


def test_a_trace_that_is_not_there_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.jsonl"
    assert cli.main(["simulate", str(path)]) == 2
    assert capsys.readouterr().err == f"openai-kv: trace {path}: No such file or directory\n"
