"""test_equality.py once more, with the model's modules exchanged as they are when a server loads it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.optimize import optimize
from tests import test_equality as plain
from tests.tiny_models import save_tiny_model
from tests.tiny_tokenizer import tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=plain.FAMILIES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[plain.Subject]:
    name = request.param
    made = plain.make_subject(name, save_tiny_model(name, tmp_path_factory.mktemp(name)), tiny_tokenizer())
    select_backend("cpu", plain.CPU)  # loads the operators
    made = replace(made, paged=optimize(made.paged))
    yield made
    assert len(made.near_ties) <= 3, made.near_ties


@pytest.mark.parametrize(
    "run",
    [
        plain.test_cold_warm_and_exact,
        partial(plain.test_chunked, chunk=7),
        plain.test_eight_at_once,
        plain.test_evicted_and_preempted,
    ],
    ids=["cold warm exact", "chunks of 7", "eight at once", "preempted"],
)
def test_same_text(subject: plain.Subject, run: Callable[[plain.Subject, str], Any]) -> None:
    run(subject, "cpu")
