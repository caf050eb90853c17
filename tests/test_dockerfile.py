"""No Docker engine is needed: the Dockerfile is linted, and its instructions are read."""

import ast
import importlib
import json
import re
import subprocess
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HADOLINT = Path(sysconfig.get_path("scripts")) / "hadolint"


@dataclass(frozen=True)
class Instruction:
    stage: int
    word: str
    text: str


def instructions() -> list[Instruction]:
    """One a logical line; stage 1 is the builder, 2 the image."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    found, stage = [], 0
    for line in filter(None, "\n".join(lines).replace("\\\n", "").splitlines()):
        word, _, text = line.partition(" ")
        stage += word == "FROM"
        found.append(Instruction(stage, word, text.strip()))
    return found


def texts(stage: int, word: str) -> list[str]:
    return [line.text for line in instructions() if (line.stage, line.word) == (stage, word)]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for text in texts(2, "ENV") for pair in text.split())


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is installed on Linux only")
def test_hadolint_has_nothing_to_say() -> None:
    result = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_the_image_is_slim_and_runs_as_nobody_special() -> None:
    bases = [line.text for line in instructions() if line.word == "FROM"]
    assert [base.split()[0] for base in bases] == ["python:${PYTHON}-slim"] * 2
    (user,) = texts(2, "USER")
    assert int(user) > 0
    assert any(f"--uid {user} " in run for run in texts(2, "RUN"))
    order = [line.word for line in instructions() if line.stage == 2]
    assert order.index("USER") > max(index for index, word in enumerate(order) if word in ("RUN", "COPY"))


def test_it_serves_to_the_outside_by_default() -> None:
    assert json.loads(texts(2, "ENTRYPOINT")[0]) + json.loads(texts(2, "CMD")[0]) == ["openai-kv", "serve"]
    assert environment()["OPENAI_KV_SERVER__HOST"] == "0.0.0.0"
    assert texts(2, "EXPOSE") == ["8000"]


def test_its_health_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check's own program asks /ready on the port of the settings, and fails when nobody answers."""
    command = json.loads(texts(2, "HEALTHCHECK")[0].partition("CMD ")[2])
    asked: list[str] = []
    monkeypatch.setattr("urllib.request.urlopen", asked.append)
    monkeypatch.delenv("OPENAI_KV_SERVER__PORT", raising=False)
    assert command[:2] == ["python", "-c"]
    exec(command[2], {})
    monkeypatch.setenv("OPENAI_KV_SERVER__PORT", "9000")
    exec(command[2], {})
    assert asked == ["http://127.0.0.1:8000/ready", "http://127.0.0.1:9000/ready"]


def test_models_lie_in_a_volume_and_the_operator_does_not() -> None:
    home = environment()["OPENAI_KV_HOME"]
    assert texts(2, "VOLUME") == [f"{home}/models"]
    assert environment()["HF_HOME"].startswith(f"{home}/models/")
    assert any(f"build_operator(Path('{home}/operators')" in run for run in texts(1, "RUN"))
    assert any(copy.endswith(f"{home} {home}") for copy in texts(2, "COPY"))


def test_the_builder_calls_what_exists() -> None:
    program = re.search(r'python -c "(.*)"', next(run for run in texts(1, "RUN") if "build_operator" in run))
    assert program is not None
    imported = [node for node in ast.walk(ast.parse(program[1])) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imported} == {"pathlib", "openai_kv.model_runner.operator_build"}
    for node in imported:
        assert hasattr(importlib.import_module(str(node.module)), node.names[0].name)


def test_torch_is_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pinned,) = [name for name in project["dependencies"] if name.startswith("torch==")]
    assert any(run.endswith(f'--index-url "$TORCH_INDEX" {pinned}') for run in texts(1, "RUN"))


def test_the_build_context_holds_only_what_is_copied() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {source for copy in texts(1, "COPY") for source in copy.split()[:-1]}
    assert "*" in ignored
    assert copied == allowed
