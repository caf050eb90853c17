"""gpu.py runs through on the CPU, with backends that are faster there than Triton's interpreter."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_plan import Report
from openai_kv.config import default_home
from openai_kv.model_runner.attention.backend import AttentionBackend
from openai_kv.model_runner.attention.select import select_backend

pytestmark = pytest.mark.usefixtures("one_thread")


def cpu_backends(device: torch.device) -> Iterator[AttentionBackend]:
    yield select_backend("cpu", device, default_home() / "operators")
    yield select_backend("sdpa", device)


def dry_run(file: Path, *arguments: str) -> int:
    return gpu.main(["--dry-run", "--json", str(file), *arguments])


def test_a_dry_run_checks_and_measures_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "backends", cpu_backends)
    code = dry_run(tmp_path / "gpu.json")
    results = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert (code, results["problems"]) == (0, [])
    assert [entry["ok"] for entry in results["kernels cpu"]] == [True, True]
    assert results["tokens torch.float32"]["worst_gap"] < 1e-3
    assert [step["batch"] for step in results["speed cpu + graphs"]["decode"]] == [1, 3]
    assert {"speed cpu", "speed sdpa", "transformers 1", "transformers 3"} < results.keys()


def test_a_check_that_fails_and_what_has_no_time_left_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "backends", cpu_backends)
    assert dry_run(tmp_path / "gpu.json", "--seconds", "-1") == 1
    assert "bandwidth: no time left" in json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["problems"]
    report = Report(0.0, {"kernels x": [{"ok": False}], "tokens torch.float32": {"worst_gap": 1.0}})
    assert [line.split(":")[0] for line in gpu.failures(report)] == ["kernel", "tokens"]
