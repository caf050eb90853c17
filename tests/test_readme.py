"""The README's commands and programs, run as they stand there."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.model
README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
RUN_ELSEWHERE = {
    "pip install -e . && openai-kv serve": "the fixture below, and .ci/run",
    "pip install -e '.[test]' && pytest": ".ci/run",
    "pip install ./plugins/openai-kv-capped-lfu": "test_plugins.py",
    "openai-kv serve --eviction-policy capped_lfu": "test_plugins.py",
}


def commands() -> list[str]:
    text = "".join(body for language, body in BLOCKS if language == "sh")
    return re.sub(r"\\\n\s*", "", text).replace("\n  ", " ").strip().split("\n")


def programs() -> list[str]:
    return [body for language, body in BLOCKS if language == "python"]


@dataclass(frozen=True)
class Shell:
    """Runs a command where the README's reader would, with the server's real port."""

    folder: Path
    port: int

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(self, command: str) -> str:
        text = command.replace("localhost:8000", f"localhost:{self.port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def serve(self, command: str) -> Iterator[None]:
        """The command, up to `ready`; SIGTERM has to end it with 0."""
        process = subprocess.Popen(
            [*command.split(), "--port", str(self.port)],
            cwd=self.folder,
            env=self.environment(),
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, b"")
            assert any(line.rstrip().endswith(b"ready") for line in lines), "the server ended before it was ready"
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.stderr.read()
            process.stderr.close()
            assert process.wait(60) == 0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def shell(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    made = Shell(tmp_path_factory.mktemp("reader"), free_port())
    with made.serve("openai-kv serve"):
        yield made


def find(part: str) -> list[str]:
    found = [command for command in commands() if part in command and command not in RUN_ELSEWHERE]
    assert found, f"the README has no command with {part!r}"
    return found


def test_every_command_is_run_by_some_test() -> None:
    parts = ("curl", "openai-kv pull", "openai-kv plugins", "openai-kv serve", "openai-kv plan ")
    known = {command for part in parts for command in find(part)} | set(RUN_ELSEWHERE)
    assert set(commands()) == known
    assert len(programs()) == 2


def test_the_first_chat_is_the_transcript(shell: Shell) -> None:
    answer = shell.run(find("/v1/chat/completions")[0])
    assert "The capital of France is Paris." in answer
    transcript = next(body for language, body in BLOCKS if not language)

    def stable(text: str) -> str:
        text = re.sub(r'"(id|system_fingerprint)":"[^"]*"', "", text)
        text = re.sub(r'"created":\d+', "", text)
        return re.sub(r"\s", "", text)

    assert stable(transcript) == stable(answer)
    again = shell.run(find("/v1/chat/completions")[0])
    assert '"cached_tokens":37' in again


def test_the_other_requests(shell: Shell) -> None:
    for command in find("curl"):
        output = shell.run(command)
        assert "error" not in output
        assert output


def test_the_openai_program(shell: Shell) -> None:
    output = shell.run(f"python - <<'PROGRAM'\n{programs()[0]}PROGRAM")
    assert re.search(r"\w{3}.*\ncached: \d+", output, re.DOTALL)


def test_pull_and_help(shell: Shell) -> None:
    assert Path(shell.run(find("openai-kv pull")[0]).strip()).is_dir()
    (help_command,) = (command for command in find("openai-kv serve") if "--help" in command)
    assert "--eviction-policy" in shell.run(help_command)


def test_the_plan(shell: Shell) -> None:
    (command,) = find("openai-kv plan ")
    assert "2 * 30 layers * 3 heads * 64" in shell.run(command)


def test_the_policy_is_found_and_serves(shell: Shell) -> None:
    path = next(re.finditer(r"`(my_policies/\w+\.py)`:", README.read_text())).group(1)
    (shell.folder / path).parent.mkdir()
    (shell.folder / path).write_text(programs()[1])
    assert "newest_first" in shell.run(find("openai-kv plugins")[0])
    (command,) = (command for command in find("openai-kv serve") if "newest_first" in command)
    other = Shell(shell.folder, free_port())
    with other.serve(command):
        stats = httpx.get(f"http://127.0.0.1:{other.port}/cache/stats").json()
        assert stats["policy"]["name"] == "newest_first"
