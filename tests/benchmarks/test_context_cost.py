"""context_cost.py on a tiny model: what it counts, and the line it fits."""

from pathlib import Path

import pytest

from benchmarks.context_cost import measure, report
from benchmarks.context_line import Line
from benchmarks.context_plot import write_plot
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from tests.tiny_models import build, tiny_config

TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # layers, K and V, heads, head_dim, float32


def test_a_line_through_exact_and_through_scattered_points() -> None:
    exact = Line.fit([1, 2, 4, 8], [5, 7, 11, 19])
    assert (exact.intercept, exact.slope, exact.r2) == pytest.approx((3, 2, 1))
    assert Line.fit([1, 2, 3, 4], [1, -1, 1, -1]).r2 == pytest.approx(0.2)


@pytest.mark.usefixtures("one_thread")
def test_the_bytes_are_the_contexts_and_long_ones_are_not_recomputed(tmp_path: Path) -> None:
    config = tiny_config("llama")
    config.vocab_size = 512
    build(config).save_pretrained(tmp_path)
    runner = ModelRunner.load(tmp_path, "tiny", RunnerSettings(num_blocks=8))
    cost = measure(runner, [16, 32, 64], turns=1, repeats=1, longest=32, read_bytes=2**20)
    assert [point.read_bytes for point in cost.points] == [TOKEN_BYTES * context for context in (16, 32, 64)]
    assert cost.bytes_per_token == pytest.approx(TOKEN_BYTES)
    assert [point.recompute_ms is None for point in cost.points] == [False, False, True]
    assert cost.slope_ratio == pytest.approx(cost.line.slope * cost.bandwidth_gb_s * 1e6 / TOKEN_BYTES)
    assert len(report(cost).splitlines()) == 7
    write_plot(tmp_path / "cost.svg", cost)
    assert b"<svg" in (tmp_path / "cost.svg").read_bytes()
