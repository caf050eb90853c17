"""A server of the Redis protocol for tests; skipped where Debian's valkey or redis-server is not installed."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PASSWORD = "secret"


@contextmanager
def run_server(folder: Path, *options: str) -> Iterator[str]:
    """The URL of one that keeps nothing, over a socket file."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    path = folder / "socket"
    words = ["--port", "0", "--unixsocket", path, "--save", "", "--requirepass", PASSWORD, "--dir", folder, *options]
    with subprocess.Popen([program, *map(str, words)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "ready to accept connections at " in line.lower():
                break
        else:
            pytest.fail("".join(lines))
        try:
            yield f"unix://:{PASSWORD}@{path}?db=0"
        finally:
            process.kill()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Certificate and key of 127.0.0.1."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    words = [program, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *subject]
    subprocess.run(words, check=True, capture_output=True)
    return certificate, key
