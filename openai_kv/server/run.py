"""Runs the application in uvicorn from the first byte to the last: loading, serving, draining, exit code.

Stock uvicorn closes the port at the first signal and cuts what runs; here a signal begins the drain of the contract.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Coroutine, Generator
from dataclasses import dataclass
from errno import EADDRINUSE
from typing import Any, NoReturn

import uvicorn

from openai_kv.engine.async_engine import AsyncEngine, EngineState
from openai_kv.errors import ModelLoadError, StartupError
from openai_kv.exporting import ExporterGroup
from openai_kv.server.app import create_app
from openai_kv.server.context import ServerContext

logger = logging.getLogger(__name__)
FLUSH_SECONDS = 5
LAST_STEP_SECONDS = 1
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class End:
    exit_code: int
    engine_stopped: bool


class Server(uvicorn.Server):
    """uvicorn without its own idea of signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Signals:
    """SIGINT and SIGTERM as two events: the first asks for a drain, any further one for haste."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def receive(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    @contextlib.contextmanager
    def installed(self) -> Generator[None, None, None]:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.receive)
        try:
            yield
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


def run(
    context: ServerContext,
    announce: Callable[[str], None] = logger.info,
    open_listener: Callable[[ServerContext], socket.socket] | None = None,
) -> int:
    """Serve until a signal; the exit code: 0 if every request could end, else 1.

    Starts the engine. Raises StartupError if the address can't be used or the model can't be loaded; `announce` gets
    a line when the socket is open and one when the model is ready. `open_listener`: in place of `listen`.
    """
    app = create_app(context)
    listener = (open_listener or listen)(context)
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )
    address = listener.getsockname()
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    announce(f"listening on http://{host}:{address[1]}")
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            end = runner.run(supervise(context, Server(config), listener, announce))
    finally:
        gc.unfreeze()  # the interpreter's end leaves alone what is frozen: Triton would report it as leaked
    if not end.engine_stopped:
        leave_at_once(end.exit_code)
    return end.exit_code


def leave_at_once(exit_code: int) -> NoReturn:
    """The engine thread is still in native code, which an orderly exit of the interpreter would crash."""
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_code)


def listen(context: ServerContext) -> socket.socket:
    """The listening socket. Its user timeout makes the kernel drop connections whose client stopped reading."""
    settings = context.settings.server
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        reason = "in use; --port takes another" if error.errno == EADDRINUSE else error.strerror or error
        raise StartupError(f"can't listen on {settings.host}:{settings.port}: {reason}") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.write_timeout * 1000))
    return listener


async def supervise(
    context: ServerContext, server: Server, listener: socket.socket, announce: Callable[[str], None]
) -> End:
    signals = Signals()
    with signals.installed():
        context.engine.start()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await first_of(signals.first.wait(), context.engine.settled.wait())
            if not signals.first.is_set():
                check_loaded(context.engine)
                spare_the_collector()
                announce("ready")
                await first_of(signals.first.wait(), wait_for(serving))
            was_cut = await drain(context, signals)
        finally:
            await close(server, serving, signals)
            await context.upstreams.close()
        # uvicorn leaves the tasks it had to cancel in its list.
        exit_code = int(was_cut or bool(server.server_state.tasks))
        engine_stopped = await stop(context.engine, signals)
        await close_exporters(context.exporters, signals)
        return End(exit_code, engine_stopped)


def check_loaded(engine: AsyncEngine) -> None:
    if engine.state is not EngineState.DEAD:
        return
    failure = engine.failure
    line = " ".join(str(failure).split())
    if isinstance(failure, StartupError):
        raise type(failure)(line) from failure
    raise ModelLoadError(f"the model can't be loaded: {type(failure).__name__}: {line}") from failure


def spare_the_collector() -> None:
    """A full collection holds every thread, for a fifth of a second over what loading left: that stays, so skip it."""
    gc.collect()
    gc.freeze()


async def drain(context: ServerContext, signals: Signals) -> bool:
    """No new work; what was accepted may go on for `drain_timeout` or until a second signal. True: some was cut."""
    grace = context.settings.server.drain_timeout
    context.lifecycle.drain_deadline = time.monotonic() + grace
    logger.info("draining for up to %g s", grace)
    await first_of(context.lifecycle.idle.wait(), signals.second.wait(), limit=grace)
    context.engine.drain()
    return context.engine.cut() + context.lifecycle.cut() > 0


async def close(server: Server, serving: "asyncio.Task[None]", signals: Signals) -> None:
    """Close the port, let answers reach their clients for a moment; a second signal shortens it."""
    server.should_exit = True
    await first_of(wait_for(serving), signals.second.wait())
    if not serving.done():
        await asyncio.wait({serving}, timeout=LAST_STEP_SECONDS)
        server.force_exit = True
    await serving


async def stop(engine: AsyncEngine, signals: Signals) -> bool:
    """End the engine thread after its step, or after loading; after a second signal wait for a moment only."""
    between_steps = asyncio.ensure_future(engine.call(lambda _: None))
    await first_of(wait_for(between_steps), signals.second.wait())
    await asyncio.wait({between_steps}, timeout=LAST_STEP_SECONDS)
    stopped = between_steps.done()
    if stopped:
        await engine.stop()
    between_steps.cancel()
    await asyncio.gather(between_steps, return_exceptions=True)
    return stopped


async def close_exporters(exporters: ExporterGroup, signals: Signals) -> None:
    """Let them deliver what they have, for a moment; a second signal shortens it."""
    closed = {name: asyncio.wrap_future(future) for name, future in exporters.close().items()}
    if closed:
        await first_of(all_done(closed.values()), signals.second.wait(), limit=FLUSH_SECONDS)
    for name, future in closed.items():
        if not future.done():
            waiting = exporters.num_waiting().get(name, 0)
            logger.warning("metrics exporter %s is not waited for; calls it had yet to take: %d", name, waiting)
            future.cancel()
    await asyncio.gather(*closed.values(), return_exceptions=True)  # what they raised is logged
    for name, count in exporters.dropped.items():
        if count:
            logger.warning("metrics exporter %s has lost %d records in all", name, count)


async def all_done(futures: Collection["asyncio.Future[None]"]) -> None:
    await asyncio.wait(futures)


async def wait_for(future: "asyncio.Future[None]") -> None:
    await asyncio.wait({future})


async def first_of(*waits: Coroutine[Any, Any, object], limit: float | None = None) -> None:
    """Return when one of them ends or the time is up; the others are cancelled. Errors of what ended are raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
