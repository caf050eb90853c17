"""Scheduler and cache with a window group, over the fake runner, which checks what every row sees of it."""

import pytest

from tests.fakes import expected_output
from tests.harness import Run, Shape, build_engine, fake_runner, make_request

WINDOW = 10
SHAPE = Shape(num_blocks=24, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=80)


def start(num_window_blocks: int, num_blocks: int = 24, speculation: str = "off") -> Run:
    shape = Shape(num_blocks, 4, 4, 8, 80, num_window_blocks=num_window_blocks)
    runner = fake_runner(shape, window=WINDOW, num_window_layers=1)
    return Run(build_engine(runner, shape, speculation=speculation))


def prompt(seed: int, length: int) -> list[int]:
    return [(seed * 31 + index * 7) % 250 for index in range(length)]


@pytest.mark.parametrize("num_window_blocks", [7, 9, 25])
def test_requests_finish_with_the_right_text(num_window_blocks: int) -> None:
    """7: a window, a step and the null block."""
    run = start(num_window_blocks)
    texts = [prompt(0, 30), prompt(0, 30), [*prompt(0, 22), *prompt(1, 9)], prompt(2, 50), prompt(3, 5), prompt(2, 50)]
    requests = [make_request(text, 12) for text in texts]
    for request, tokens in zip(requests, run.generate(*requests), strict=True):
        assert tokens == expected_output(list(request.prompt_token_ids), 12, 256)
    window = run.engine.stats().cache.window
    assert window is not None and window.referenced == 0
    assert window.total == num_window_blocks - 1


def test_drafts_have_their_parts_and_give_back_what_was_wrong() -> None:
    run = start(25, num_blocks=60, speculation="auto")
    texts = [prompt(0, 30), prompt(1, 20), prompt(0, 30), [*prompt(0, 30), *expected_output(prompt(0, 30), 6, 256)]]
    requests = [make_request(text, 20) for text in texts]
    for request in requests:
        (tokens,) = run.generate(request)
        assert tokens == expected_output(list(request.prompt_token_ids), 20, 256)
    assert any(run.engine.runner.drafted)  # type: ignore[attr-defined]


def test_a_window_group_that_is_full_preempts() -> None:
    run = start(num_window_blocks=9, num_blocks=200)
    requests = [make_request(prompt(seed, 6), 30) for seed in range(4)]
    for request, tokens in zip(requests, run.generate(*requests), strict=True):
        assert tokens == expected_output(list(request.prompt_token_ids), 30, 256)
    stats = run.engine.stats()
    assert stats.preemptions > 0 and stats.cache.eviction_count == 0, "there were blocks enough, but no parts"


def test_pressure_is_that_of_the_tighter_group() -> None:
    run = start(num_window_blocks=9, num_blocks=200)
    run.add(make_request(prompt(0, 30), 1))
    run.step()
    assert run.engine.stats().cache.memory_pressure == 2 / 8
    run.until_idle()
    assert run.engine.stats().cache.memory_pressure == 0
