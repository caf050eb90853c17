"""A line when the pool is nearly full, and no chatter."""

import pytest

from openai_kv.engine.pressure import PressureLog
from tests.harness import Run, Shape, build_engine, fake_runner, make_request


@pytest.mark.parametrize(
    ("course", "told"),
    [
        ([0.5, 0.89, 0.5], []),
        ([0.91, 0.96, 0.995], [90, 95, 99]),
        ([0.9, 0.89, 0.9, 0.86, 0.93], [90]),
        ([0.91, 0.84, 0.91], [90, 90]),
        ([0.96, 0.91, 0.96], [95]),
        ([0.96, 0.89, 0.96], [95, 95]),
        ([0.3, 1.0, 1.0, 0.95, 1.0], [99]),
        ([1.0, 0.0, 0.91], [99, 90]),
    ],
)
def test_each_level_is_told_on_the_way_up(
    course: list[float], told: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    log = PressureLog()
    for pressure in course:
        log.watch(pressure)
    assert [int(message.split(" %")[0]) for message in caplog.messages] == told


def test_an_engine_whose_pool_fills_up_says_so(caplog: pytest.LogCaptureFixture) -> None:
    shape = Shape(num_blocks=8, block_size=4, max_model_len=32)
    run = Run(build_engine(fake_runner(shape), shape))
    run.generate(make_request(range(10), 10))
    assert caplog.messages == [], "5 of 8 blocks, and cached ones can go"
    run.generate(make_request(range(30, 54), 8))
    assert [message.split(" %")[0] for message in caplog.messages] == ["99"]
    assert run.engine.stats().cache.memory_pressure == 0
