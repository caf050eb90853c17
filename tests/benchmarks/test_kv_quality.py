"""What the comparison of KV formats says of a reference, and of something else."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.kv_decode import compare, fill, report
from benchmarks.kv_quality import cut, evaluate
from benchmarks.kv_scores import WindowScore, bootstrap, summarize
from benchmarks.steps import Workload
from openai_kv.model_runner.model_runner import ModelRunner
from tests.model_runner.driver import Driver, random_prompt
from tests.tiny_models import build, tiny_config

pytestmark = pytest.mark.usefixtures("one_thread")


def runners(*formats: str) -> list[ModelRunner]:
    config = tiny_config("llama")
    config.vocab_size = 512
    return [Driver(build(config), kv_cache_dtype=name).runner for name in formats]


def test_a_format_is_held_against_the_first() -> None:
    windows = cut(random_prompt(0, 400), context=90, count=3)
    assert [len(window) for window in windows] == [90] * 3
    reference, coded = zip(*evaluate(runners("float32", "int4"), windows), strict=True)
    assert all(score.kl == 0 and score.agreement == 1 and score.loss > 0 for score in reference)
    assert all(score.kl > 0 for score in coded)


def test_intervals_hold_the_mean_and_grow_with_the_spread() -> None:
    alike, apart = (bootstrap(np.array([2.0, 2.0 + by, 2.0 - by])) for by in (0.0, 1.0))
    assert alike.low == alike.value == alike.high == 2.0
    assert apart.low < apart.value < apart.high
    assert bootstrap(np.array([1.0, 2.0, 4.0])) == bootstrap(np.array([1.0, 2.0, 4.0]))


def test_change_is_that_of_the_perplexity() -> None:
    reference = [WindowScore(loss, 0.0, 1.0) for loss in (2.0, 3.0)]
    worse = [replace(score, loss=score.loss + 0.01, kl=0.2, agreement=0.9) for score in reference]
    found = summarize("int8", 10.5, worse, reference)
    assert found.perplexity == pytest.approx(math.exp(2.51))
    assert found.change.low == pytest.approx(found.change.value) == pytest.approx(math.expm1(0.01))
    assert [found.kl.value, found.agreement.value] == pytest.approx([0.2, 0.9])


def test_decoding_is_held_against_the_first() -> None:
    found = runners("float32", "int8")
    for runner in found:
        fill(runner.kv_pool)
    rows = compare(found, Workload("decode", 2, 1, 100), turns=2)
    assert [row.kv_cache_dtype for row in rows] == ["float32", "int8"]
    assert rows[0].speedup == 1 and rows[0].read_bytes / rows[1].read_bytes == pytest.approx(64 / 18)
    assert len(report(rows).splitlines()) == 3
