"""Signals, exit codes and a failing start, in a process of its own."""

import asyncio
import gc
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from openai_kv.engine.async_engine import AsyncEngine
from openai_kv.engine.engine import Engine
from openai_kv.errors import ModelLoadError, StartupError
from openai_kv.request import Request
from openai_kv.server.context import ServerContext
from openai_kv.server.run import Signals, run
from tests.harness import fake_runner
from tests.server.serving import CHAT, SHAPE, SteppedRunner, check_error, events, make_context

ROOT = Path(__file__).parents[2]
STREAM = {**CHAT, "max_tokens": 6, "stream": True}


class Running:
    """The process, how to step it, and a client for it."""

    def __init__(self, process: Process, client: httpx.AsyncClient) -> None:
        self.process = process
        self.client = client

    def allow(self, steps: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n".encode())

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def status(self, path: str) -> int:
        return (await self.client.get(path)).status_code

    async def drained(self) -> None:
        while await self.status("/ready") == 200:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 20)

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[AsyncIterator[str]]:
        """A stream whose first token has arrived; yields the rest of its text."""
        self.allow(1)
        async with self.client.stream("POST", "/v1/chat/completions", json=STREAM) as response:
            pieces = response.aiter_text()
            assert '"role":"assistant"' in await anext(pieces)
            yield pieces


@asynccontextmanager
async def server(drain_timeout: float = 30) -> AsyncIterator[Running]:
    command = [sys.executable, "-m", "tests.server.fake_server", str(drain_timeout)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdout is not None and process.stdin is not None
    try:
        url = (await process.stdout.readline()).decode().split()[-1]
        assert (await process.stdout.readline()).decode() == "ready\n"
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            yield Running(process, client)
    finally:
        if process.returncode is None:
            process.kill()
        process.stdin.close()
        await process.wait()


async def rest(pieces: AsyncIterator[str]) -> list[object]:
    return events("".join([piece async for piece in pieces]))


async def test_what_was_accepted_ends_normally_while_new_work_is_refused() -> None:
    async with server() as running, running.stream() as pieces:
        running.terminate()
        await running.drained()
        assert await running.status("/health") == 200
        assert await running.status("/v1/models") == 200
        refused = await running.client.post("/v1/chat/completions", json=CHAT)
        check_error(refused, 503, "draining")
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert refused.headers["connection"] == "close"
        running.allow(50)
        *_, last, done = await rest(pieces)
        assert isinstance(last, dict) and last["choices"][0]["finish_reason"] == "length"
        assert done == "[DONE]"
        assert await running.exit_code() == 0


async def test_what_is_left_after_the_grace_ends_with_an_error_and_done() -> None:
    async with server(drain_timeout=0.2) as running, running.stream() as pieces:
        running.terminate()
        *_, error, done = await rest(pieces)
        assert isinstance(error, dict) and error["error"]["code"] == "shutting_down"
        assert done == "[DONE]"
        running.allow(50)
        assert await running.exit_code() == 1


async def test_a_second_signal_does_not_wait() -> None:
    async with server(drain_timeout=600) as running, running.stream() as pieces:
        whole = asyncio.create_task(running.client.post("/v1/chat/completions", json=CHAT))
        running.terminate()
        await running.drained()
        running.terminate()
        *_, error, done = await rest(pieces)
        assert isinstance(error, dict) and error["error"]["code"] == "shutting_down"
        assert done == "[DONE]"
        assert (await whole).status_code == 503
        assert await running.exit_code() == 1


async def test_nothing_to_do_is_a_quick_and_clean_end() -> None:
    async with server(drain_timeout=600) as running:
        running.process.send_signal(signal.SIGINT)
        assert await running.exit_code() == 0


def test_what_was_loaded_is_nothing_to_collect() -> None:
    seen: dict[str, int] = {}

    def announce(line: str) -> None:
        seen[line] = len(gc.get_objects())
        if line == "ready":
            os.kill(os.getpid(), signal.SIGINT)

    assert run(make_context(SteppedRunner(fake_runner(SHAPE)), server__port=0), announce) == 0
    before, after = seen.values()
    assert after < before / 10
    assert gc.get_freeze_count() == 0  # or Triton's bindings report leaks at the interpreter's end


def failing_context(error: Exception) -> ServerContext:
    context = make_context(SteppedRunner(fake_runner(SHAPE)), server__port=0)

    def build(on_started: Callable[[Request], None]) -> Engine:
        raise error

    object.__setattr__(context, "engine", AsyncEngine(build))
    return context


@pytest.mark.parametrize("error", [ModelLoadError("no such\nmodel"), ValueError("bad\nweights")])
def test_a_model_that_can_not_be_loaded_stops_the_start_in_one_line(error: Exception) -> None:
    with pytest.raises(ModelLoadError) as caught:
        run(failing_context(error))
    assert str(caught.value) in ("no such model", "the model can't be loaded: ValueError: bad weights")


def test_an_address_in_use_stops_the_start_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError, match=rf"can't listen on 127\.0\.0\.1:{port}: in use; --port takes another$"):
            run(make_context(SteppedRunner(fake_runner(SHAPE)), server__port=port))


async def test_signals_in_turn() -> None:
    signals = Signals()
    signals.receive()
    assert signals.first.is_set() and not signals.second.is_set()
    signals.receive()
    assert signals.second.is_set()
