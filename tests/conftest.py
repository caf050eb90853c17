"""Fixtures for all tests."""

from pathlib import Path

import pytest

from openai_kv import model_store
from openai_kv.config import default_home


@pytest.fixture(scope="session")
def default_model() -> Path:
    """Folder of SmolLM2-135M-Instruct, pulled once into the model cache."""
    return model_store.resolve("smollm2-135m-instruct", home=default_home(), progress=print)
