"""Recorded decode steps with a recorder for the CPU: what is replayed is the same function on the same tensors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from openai_kv.model_runner.graphs import GraphLimits, Recording, record_decode
from openai_kv.model_runner.input_batch import InputBatch
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from tests.model_runner.driver import Driver, Stream, random_prompt

MAX_SEQS = 4
pytestmark = pytest.mark.usefixtures("one_thread")


class Recorder:
    """Keeps the work; each replay puts its result where the first one was, and counts."""

    def __init__(self) -> None:
        self.recorded = 0
        self.replays: list[int] = []

    def __call__(self, work: Callable[[], Tensor]) -> Recording:
        self.recorded += 1
        output = work()
        return Recording(partial(self._replay, work, output), output)

    def _replay(self, work: Callable[[], Tensor], output: Tensor) -> None:
        self.replays.append(len(output))
        output.copy_(work())


def replaying(family: str, backend: str, **settings: Any) -> tuple[Driver, Recorder]:
    """A driver whose runner records its decode steps."""
    driver, recorder = Driver(family, backend=backend, **settings), Recorder()
    sizes = RunnerSettings(
        num_blocks=driver.runner.kv_pool.num_blocks,
        block_size=driver.runner.kv_pool.block_size,
        max_num_seqs=MAX_SEQS,
        max_model_len=200,
    )
    driver.runner = ModelRunner(driver.runner.model, driver.runner.backend, "tiny", sizes, recorder)
    return driver, recorder


def test_sizes_are_powers_of_two_up_to_the_largest_step() -> None:
    sizes = [GraphLimits(most, 1, 1, 0).sizes for most in (1, 2, 5, 8, 300)]
    assert sizes[:4] == [(1,), (1, 2), (1, 2, 4, 8), (1, 2, 4, 8)]
    assert sizes[4][-1] == 256


def streams(driver: Driver) -> list[Stream]:
    return [driver.stream(str(number), random_prompt(number, 5 + 9 * number), room=20) for number in range(7)]


def drive(driver: Driver) -> list[list[int]]:
    """Steps of 1 to 7 requests that come and go, so that a smaller step finds a larger one's rows in its tensors."""
    everyone = streams(driver)
    for stream in everyone:
        driver.step((stream, None))
    for count in (1, 7, 3, 2, 4, 1, 3):
        driver.step(*((stream, None) for stream in everyone[-count:]))
    return [stream.output for stream in everyone]


def test_the_same_tokens_and_blocks_replayed_as_run() -> None:
    plain = Driver("qwen2", backend="cpu", block_size=7)
    replayed, recorder = replaying("qwen2", "cpu", block_size=7)
    assert drive(replayed) == drive(plain)
    assert recorder.replays == [1, 4, 2, 4, 1, 4], "seven rows are too many, and prompts are not replayed"
    for ours, its in zip(replayed.runner.kv_pool.layers, plain.runner.kv_pool.layers, strict=True):
        torch.testing.assert_close(ours.key[:-1], its.key)
        torch.testing.assert_close(ours.value[:-1], its.value)


def test_whatever_lies_in_the_scratch_block_and_the_idle_rows_changes_nothing() -> None:
    driver, _ = replaying("llama", "cpu")
    everyone = streams(driver)
    for stream in everyone:
        driver.step((stream, None))
    rows = [stream.take() for stream in everyone[:3]]
    first = driver.execute(*rows)
    for layer in driver.runner.kv_pool.layers:
        layer.key[-1] = layer.value[-1] = float("nan")
    driver.execute(*(stream.take() for stream in everyone[3:]))
    assert driver.execute(*rows) == first


def test_a_policy_that_needs_attention_gets_no_recording() -> None:
    driver = Driver("llama", backend="cpu")
    recorder = Recorder()
    settings = RunnerSettings(num_blocks=8, needs_attention=True)
    ModelRunner(driver.runner.model, driver.runner.backend, "tiny", settings, recorder)
    assert recorder.recorded == 0


def test_a_model_that_reads_from_the_device_is_run(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(work: Callable[[], Tensor]) -> Recording:
        raise RuntimeError("operation not permitted when stream is capturing")

    def forward(batch: InputBatch) -> Tensor:
        return batch.positions

    assert record_decode(forward, GraphLimits(4, 100, 16, 3), torch.device("cpu"), refuse) is None
    assert "run, not replayed: operation not permitted" in caplog.text
