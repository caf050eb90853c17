import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from openai_kv.engine.admission import QueueLimits
from openai_kv.engine.async_engine import AsyncEngine, EngineState
from openai_kv.engine.engine import Engine
from openai_kv.engine.engine_request import EngineRequest
from openai_kv.errors import InternalError, OverloadedError, UnavailableError
from openai_kv.outputs import ModelRunnerOutput, RequestOutput, SchedulerOutput
from openai_kv.request import FinishReason, Request, RequestInfo, SamplingParams
from tests.fakes import FakeModelRunner, expected_output
from tests.harness import Shape, build_engine, fake_runner

PROMPT = tuple(range(10, 33))
LONG = 90


class GatedRunner:
    """Runs `free_steps` steps, then holds each until the test opens the gate."""

    def __init__(self, inner: FakeModelRunner) -> None:
        self.inner, self.info = inner, inner.info
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.held = threading.Event()
        self.free_steps = 10_000

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        self.entered.set()
        self.free_steps -= 1
        if self.free_steps < 0:
            self.held.set()
            assert self.gate.wait(20)
        return self.inner.execute_model(scheduled)


@asynccontextmanager
async def running(
    shape: Shape | None = None, limits: QueueLimits | None = None, *, overlapped: bool = False
) -> AsyncIterator[tuple[AsyncEngine, GatedRunner]]:
    shape = shape or Shape()
    runner = GatedRunner(fake_runner(shape))

    def build(on_started: Callable[[Request], None]) -> Engine:
        return build_engine(runner, shape, on_started=on_started, overlapped=overlapped)

    engine = AsyncEngine(build, limits)
    engine.start()
    await engine.settled.wait()
    try:
        yield engine, runner
        if engine.state is not EngineState.DEAD:
            await engine.join_idle()
            await engine.check_integrity()
            assert (await engine.stats()).cache.referenced == 0
    finally:
        runner.gate.set()
        await engine.stop()


def make(name: str, max_tokens: int = 8, prompt: tuple[int, ...] = PROMPT) -> EngineRequest:
    return EngineRequest(RequestInfo(name, len(prompt)), prompt, SamplingParams(max_tokens=max_tokens))


async def collect(engine: AsyncEngine, request: EngineRequest) -> tuple[list[int], RequestOutput]:
    outputs = [output async for output in engine.generate(request)]
    return [token for output in outputs for token in output.token_ids], outputs[-1]


async def test_concurrent_requests() -> None:
    async with running() as (engine, _):
        requests = [make(f"r{number}", 8, (number, *PROMPT)) for number in range(10)]
        results = await asyncio.gather(*(collect(engine, request) for request in requests))
        for request, (tokens, last) in zip(requests, results, strict=True):
            assert tokens == expected_output(request.prompt_token_ids, 8, 256)
            assert last.finish_reason is FinishReason.LENGTH
        assert engine.num_active == 0


async def test_abort_ends_the_stream_and_frees_the_blocks() -> None:
    async with running() as (engine, runner):
        runner.free_steps = 2
        stream = engine.generate(make("r", LONG))
        await anext(stream)
        engine.abort("r")
        engine.abort("r")
        runner.gate.set()
        assert [output async for output in stream][-1].finish_reason is FinishReason.ABORT


async def test_leaving_the_reader_and_aborting_frees_everything() -> None:
    async with running() as (engine, runner):
        runner.free_steps = 2
        stream = engine.generate(make("r", LONG))
        await anext(stream)
        await stream.aclose()
        engine.abort("r")
        runner.gate.set()
        await engine.join_idle()


async def test_full_queue_is_refused_and_running_requests_do_not_count() -> None:
    async with running(Shape(max_num_seqs=1), QueueLimits(max_queue=1)) as (engine, runner):
        runner.free_steps = 2
        first = engine.generate(make("first", LONG))
        await anext(first)
        waiting = asyncio.create_task(collect(engine, make("second")))
        await asyncio.sleep(0)  # the task runs up to its first output
        assert engine.num_active == 2
        with pytest.raises(OverloadedError) as caught:
            await collect(engine, make("third"))
        assert caught.value.code == "queue_full"
        engine.abort("first")
        runner.gate.set()
        assert (await waiting)[0] == expected_output(PROMPT, 8, 256)


async def test_queue_timeout() -> None:
    async with running(Shape(max_num_seqs=1), QueueLimits(queue_timeout=0.05)) as (engine, runner):
        runner.free_steps = 0
        first = asyncio.create_task(collect(engine, make("first")))
        await asyncio.to_thread(runner.entered.wait)
        with pytest.raises(OverloadedError) as caught:
            await collect(engine, make("second"))
        assert caught.value.code == "queue_timeout"
        runner.gate.set()
        assert (await first)[0] == expected_output(PROMPT, 8, 256)


async def test_a_failing_step_is_an_internal_error_and_the_engine_goes_on() -> None:
    async with running() as (engine, runner):
        runner.inner.fail_at = {1}
        with pytest.raises(InternalError):
            await collect(engine, make("first"))
        assert (await collect(engine, make("second")))[0] == expected_output(PROMPT, 8, 256)


async def test_draining_takes_nothing_new_and_finishes_the_rest() -> None:
    async with running() as (engine, runner):
        runner.free_steps = 2
        stream = engine.generate(make("r"))
        first = await anext(stream)
        engine.drain()
        runner.gate.set()
        with pytest.raises(UnavailableError) as caught:
            await collect(engine, make("new"))
        assert caught.value.code == "draining"
        rest = [token async for output in stream for token in output.token_ids]
        assert [*first.token_ids, *rest] == expected_output(PROMPT, 8, 256)


async def test_cut_ends_what_is_left() -> None:
    async with running() as (engine, runner):
        runner.free_steps = 2
        stream = engine.generate(make("r", LONG))
        await anext(stream)
        assert engine.cut() == 1
        runner.gate.set()
        with pytest.raises(UnavailableError) as caught:
            _ = [output async for output in stream]
        assert caught.value.code == "shutting_down"


async def test_call_passes_results_and_errors() -> None:
    async with running() as (engine, _):
        await collect(engine, make("r"))
        assert (await engine.stats()).cache.cached > 0
        assert (await engine.reset_cache()).freed_blocks > 0
        assert (await engine.stats()).cache.cached == 0
        with pytest.raises(ZeroDivisionError):
            await engine.call(lambda _: 1 // 0)


async def test_a_dead_engine_tells_everyone() -> None:
    async with running() as (engine, runner):
        runner.free_steps = 2
        stream = engine.generate(make("r", LONG))
        await anext(stream)

        def die(_: Engine) -> None:
            raise SystemExit("on purpose")

        waiting = asyncio.create_task(engine.call(die))
        await asyncio.sleep(0)  # the task hands its call over
        runner.gate.set()
        with pytest.raises(UnavailableError) as caught:
            _ = [output async for output in stream]
        assert caught.value.code == "engine_dead"
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await engine.stats()
        with pytest.raises(UnavailableError):
            await collect(engine, make("new"))
        assert engine.state is EngineState.DEAD


async def test_a_model_that_does_not_load() -> None:
    def build(_: Callable[[Request], None]) -> Engine:
        raise ValueError("no model")

    engine = AsyncEngine(build)
    engine.start()
    with pytest.raises(UnavailableError) as caught:
        await collect(engine, make("r"))
    assert caught.value.code == "model_loading"
    await engine.settled.wait()
    assert engine.state is EngineState.DEAD
    assert isinstance(engine.failure, ValueError)
    await engine.stop()


async def test_loading_that_is_interrupted_while_draining_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    draining = threading.Event()

    def build(_: Callable[[Request], None]) -> Engine:
        assert draining.wait(60)
        raise KeyboardInterrupt

    engine = AsyncEngine(build)
    engine.start()
    engine.drain()
    draining.set()
    await engine.settled.wait()
    assert engine.state is EngineState.DEAD
    assert caplog.messages == []
    await engine.stop()


async def test_steps_that_are_planned_ahead_let_in_who_comes() -> None:
    """The second comes while a step runs: it is in the next, which had been planned without it."""
    async with running(overlapped=True) as (engine, runner):
        runner.free_steps = 3
        first = asyncio.ensure_future(collect(engine, make("first", LONG)))
        await asyncio.to_thread(runner.held.wait, 20)
        second = asyncio.ensure_future(collect(engine, make("second", 8, PROMPT[4:])))
        await asyncio.sleep(0)  # the second's task runs up to where it waits for an output
        assert engine.num_active == 2
        runner.gate.set()
        assert (await first)[0] == expected_output(PROMPT, LONG, 256)
        assert (await second)[0] == expected_output(PROMPT[4:], 8, 256)
        assert [set(step) for step in runner.inner.rows[3:5]] == [{"first"}, {"first", "second"}]


@pytest.mark.parametrize("count", [1, 12])
async def test_steps_that_are_planned_ahead_say_the_same(count: int) -> None:
    async with running(overlapped=True) as (engine, _):
        requests = [make(f"r{number}", 8 + number, (number, *PROMPT)) for number in range(count)]
        results = await asyncio.gather(*(collect(engine, request) for request in requests))
        for number, (tokens, _) in enumerate(results):
            assert tokens == expected_output((number, *PROMPT), 8 + number, 256)
