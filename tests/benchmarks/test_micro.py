"""The micro-benchmarks run, once each, on what is small."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_all_of_them_run() -> None:
    pytest.importorskip("pytest_benchmark", reason="pip install 'openai-kv[benchmark]'")
    command = [sys.executable, "-m", "pytest", "benchmarks/micro", "--tiny", "--benchmark-disable", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
