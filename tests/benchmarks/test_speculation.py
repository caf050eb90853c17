"""speculation.py on a tiny model: an answer that was given before takes fewer steps."""

from pathlib import Path

import pytest

from benchmarks.speculation import NEW_TOKENS, Workload, build, compare
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from tests.tiny_models import build as build_model
from tests.tiny_models import tiny_config
from tests.tiny_tokenizer import tiny_tokenizer


@pytest.mark.usefixtures("one_thread")
def test_what_was_answered_before(tmp_path: Path) -> None:
    config = tiny_config("llama")
    config.vocab_size = 512
    build_model(config).save_pretrained(tmp_path)
    runners = [ModelRunner.load(tmp_path, "tiny", RunnerSettings(num_blocks=2048)) for _ in range(2)]
    sides = [build(runner, tiny_tokenizer(), how, 8) for runner, how in zip(runners, ("off", "tree"), strict=True)]
    fields = compare(Workload("again", lambda seed: f"text {seed}", warm=True), 2, sides, rounds=1).split()
    assert fields[:2] == ["again", "2"]
    off, on = (side.runner for side in sides)
    assert (off.steps, off.rows, off.drafts) == (NEW_TOKENS - 1, 2 * (NEW_TOKENS - 1), 0)
    assert on.rows == 2 * (NEW_TOKENS - 1) + on.drafts - on.right
    assert on.steps <= off.steps
