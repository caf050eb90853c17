import pytest

from openai_kv.config import default_home
from openai_kv.model_runner.operator_build import build_operator, load_operator


@pytest.fixture(scope="session", autouse=True)
def operators() -> None:
    load_operator(build_operator(default_home() / "operators", print))
