"""One server for all clients' tests, emptied before each and idle after it."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.programs import free_port, running
from tests.clients.service import Service


@pytest.fixture(scope="session")
def served_model(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """In float32, where greedy text does not depend on what is cached or who asks at the same time."""
    port = free_port()
    program = str(Path(sys.executable).with_name("openai-kv"))
    command = [program, "serve", "--port", str(port), "--dtype", "float32"]
    url = f"http://127.0.0.1:{port}"
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # several wait for each other on a busy machine
    with running(command, one_thread, f"{url}/ready", tmp_path_factory.mktemp("server") / "log"):
        yield Service(url, default_model)


@pytest.fixture
def service(served_model: Service) -> Iterator[Service]:
    served_model.post("/cache/reset")
    yield served_model
    assert served_model.stats()["blocks"]["referenced"] == 0
