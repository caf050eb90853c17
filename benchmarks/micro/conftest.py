"""What the micro-benchmarks share: the model, as a folder, loaded, and its tokenizer; `--tiny` for a trial run."""

from pathlib import Path

import pytest

from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.tokenizer import Tokenizer
from tests.tiny_models import build, tiny_config
from tests.tiny_tokenizer import tiny_tokenizer

CONTEXT = 256
BLOCKS = 64 * (CONTEXT // 16 + 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("openai-kv")
    group.addoption("--model", default="smollm2-135m-instruct", help="a name, Hub id or folder")
    group.addoption("--tiny", action="store_true", help="a random model of two layers and small caches: does it run?")


@pytest.fixture(scope="session")
def tiny(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("tiny"))


@pytest.fixture(scope="session")
def model(tiny: bool, pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not tiny:
        return model_store.resolve(pytestconfig.getoption("model"), home=default_home(), progress=print)
    folder, config = tmp_path_factory.mktemp("tiny"), tiny_config("llama")
    config.vocab_size = 512
    build(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def runner(model: Path) -> ModelRunner:
    return ModelRunner.load(model, "model", RunnerSettings(num_blocks=BLOCKS))


@pytest.fixture(scope="session")
def tokenizer(tiny: bool, model: Path) -> Tokenizer:
    return tiny_tokenizer() if tiny else Tokenizer.load(model)
