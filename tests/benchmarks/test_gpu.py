"""gpu.py runs through on the CPU."""

import json
from pathlib import Path

import pytest

from benchmarks import gpu

pytest.importorskip("triton")


@pytest.mark.usefixtures("one_thread")
def test_a_dry_run_checks_and_measures_everything(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    code = gpu.main(["--dry-run", "--json", str(file)])
    results = json.loads(file.read_text(encoding="utf-8"))
    assert all(entry["ok"] for entry in results["kernels triton"])
    assert results["tokens torch.float32"]["worst_gap"] < 1e-3
    assert [step["batch"] for step in results["speed triton + graphs"]["decode"]] == [1, 3]
    assert {"speed triton", "speed sdpa"} < results.keys()
    assert (code, results["problems"]) == (0, [])


def test_what_has_no_time_left_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    assert gpu.main(["--dry-run", "--seconds", "-1", "--json", str(file)]) == 1
    assert "bandwidth: no time left" in json.loads(file.read_text(encoding="utf-8"))["problems"]
