"""Programs as people start them: clients that need not share our environment, and servers."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def find(name: str) -> str:
    """Path of a client's program; without it the test is skipped."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on the PATH: docs/clients.md says how to install it")
    return path


def environment(**changes: str) -> dict[str, str]:
    """Ours, but for PYTHONPATH: it would lead a program to packages of another environment."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**inherited, **OFFLINE, **changes}


def run(command: Sequence[str], **changes: str) -> str:
    """Standard output of a program that has to succeed."""
    done = subprocess.run(command, env=environment(**changes), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], env: Mapping[str, str], health: str, log: Path) -> Iterator[None]:
    """The program, from when the URL `health` says 200 to SIGTERM."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
    try:
        await_health(process, health, log)
        yield
    finally:
        process.terminate()
        process.wait(60)


def await_health(process: subprocess.Popen[bytes], health: str, log: Path) -> None:
    """Asks again and again: a program of others tells it in no other way."""
    end = time.monotonic() + 600
    while not is_healthy(health):
        assert process.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-4000:]
        time.sleep(0.2)


def is_healthy(health: str) -> bool:
    try:
        return httpx.get(health).is_success
    except httpx.TransportError:
        return False
