"""kv_tasks.py: what counts as right, and that formats are held against the first."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from benchmarks.kv_tasks import Subject, compare
from benchmarks.task_items import GSM8K, RULER, SHOTS, TASKS
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.loader import load_model
from tests.tiny_models import build, tiny_config
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    problems = [{"question": f"q{n}?", "answer": f"n*1000=<<{n}*1000={n}000>>{n}000\n#### {n},000"} for n in range(8)]
    write(tmp_path / GSM8K, problems)
    write(tmp_path / RULER, [{"input": "keys. The key is", "outputs": ["0b2c-aa8c"]}])
    return tmp_path


def write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_examples_stand_before_each_problem_and_are_not_asked(data: Path) -> None:
    first, *_ = items = TASKS["gsm8k"](data).items
    assert len(items) == 8 - SHOTS
    assert first.prompt.startswith("Question: q3?\nAnswer: n*1000=3000\n#### 3,000\n\nQuestion: q4?")
    assert first.prompt.endswith("#### 7,000\n\nQuestion: q0?\nAnswer:") and first.answer == "0000"
    last = TASKS["gsm8k-last"](data).items[1]
    assert last.prompt.endswith("Question: q1?\nAnswer: n*1000=1000\n####") and last.answer == "1000"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("so 900 and 100\n#### 1,000", True),
        (" 1,000", True),
        ("#### $1000.", True),
        ("1000 as 3 are", False),
        ("1000 #### 10", False),
        ("", False),
    ],
)
def test_the_number_that_ends_an_answer_counts(data: Path, text: str, right: bool) -> None:
    assert TASKS["gsm8k"](data).right(text, "1000") is right


def test_a_needle_is_found_anywhere(data: Path) -> None:
    task = TASKS["niah"](data)
    assert task.right(" is: 0b2c-aa8c.", task.items[0].answer) and not task.right("0b2c-aa8d", task.items[0].answer)


def test_formats_answer_the_same_items(data: Path, tmp_path: Path) -> None:
    config = tiny_config("llama")
    config.vocab_size = 512
    build(config).save_pretrained(tmp_path / "model")
    args = Namespace(data=data, items=2, formats=("float32", "int8"), block_size=16, show=0)
    model, backend = load_model(tmp_path / "model", dtype="float32"), select_backend("sdpa", torch.device("cpu"))
    reference, coded = compare(args, Subject(model, backend, tiny_tokenizer()), "gsm8k-last")
    assert (reference.items, coded.items, reference.change.value) == (2, 2, 0.0)
    assert reference.token_bytes / coded.token_bytes == pytest.approx(64 / 18)
    assert coded.change.value == coded.score.value - reference.score.value
