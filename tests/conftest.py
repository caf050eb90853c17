"""Fixtures for all tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from openai_kv import model_store
from openai_kv.config import default_home

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton asks when a kernel is defined


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Folder of SmolLM2-135M-Instruct, pulled once into the model cache."""
    return model_store.resolve("smollm2-135m-instruct", home=default_home(), progress=print)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On a busy machine, and for tiny models always, one thread is faster than several that wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
