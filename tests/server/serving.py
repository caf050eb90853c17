"""A whole server over the fake model, for tests: in process, or on a real socket."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette

from openai_kv.cache.demotion import DemotionRule
from openai_kv.cache.pin import PinLimits
from openai_kv.config import load_settings
from openai_kv.engine.admission import QueueLimits
from openai_kv.engine.async_engine import AsyncEngine
from openai_kv.engine.engine import Engine
from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import HttpStats, RequestStats, ServerInfo
from openai_kv.metrics_exporter import MetricsExporter
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from openai_kv.parsing.tool_parser import ToolParser
from openai_kv.request import Request
from openai_kv.server.app import create_app
from openai_kv.server.context import ServerContext
from openai_kv.server.run import Server
from openai_kv.server.upstreams import Upstreams
from openai_kv.tiers.tier import CacheTier
from openai_kv.tiers.tier_thread import TierThread
from openai_kv.tiers.tiers import Tiers
from openai_kv.tokenizer import Tokenizer
from tests.fakes import FakeModelRunner
from tests.harness import Shape, build_engine, fake_runner
from tests.tiers.inline import INFO, FixedSpeed
from tests.tiny_tokenizer import tiny_tokenizer

SHAPE = Shape(num_blocks=256, block_size=4, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=512)
MESSAGES = [{"role": "user", "content": "What is a cache?"}]
CHAT = {"model": "fake", "messages": MESSAGES, "max_tokens": 8, "temperature": 0}


class SteppedRunner:
    """Runs freely until `hold`; from then on one step for each `allow`ed one."""

    def __init__(self, inner: FakeModelRunner) -> None:
        self.inner, self.info = inner, inner.info
        self.entered = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._held = False

    def hold(self) -> None:
        self._held = True

    def allow(self, steps: int = 1) -> None:
        self._permits.release(steps)

    def release(self) -> None:
        self._held = False
        self._permits.release()

    def execute_model(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        if self._held:
            self.entered.release()
            assert self._permits.acquire(timeout=30)
        return self.inner.execute_model(scheduled)


class RecordingExporter(MetricsExporter):
    """Keeps what the HTTP layer tells; `changed` is set with every record. Made on the event loop that waits for it."""

    name = "recording"

    def __init__(self) -> None:
        self.http: list[HttpStats] = []
        self.requests: list[RequestStats] = []
        self.aborts: list[str] = []
        self.rejected: list[str] = []
        self.changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def on_http_request(self, stats: HttpStats) -> None:
        self.http.append(stats)
        self._loop.call_soon_threadsafe(self.changed.set)

    def on_request_finished(self, stats: RequestStats) -> None:
        self.requests.append(stats)

    def on_abort(self, reason: str) -> None:
        self.aborts.append(reason)

    def on_rejected(self, reason: str) -> None:
        self.rejected.append(reason)

    def scrape(self) -> bytes:
        return b"up 1\n"

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@dataclass
class Site:
    """A running server and what a test may look at."""

    app: Starlette
    context: ServerContext
    engine: AsyncEngine
    runner: SteppedRunner
    exporter: RecordingExporter
    client: httpx.AsyncClient
    headers: dict[str, str] = field(default_factory=dict)

    async def post(self, path: str, body: Mapping[str, Any], **headers: str) -> httpx.Response:
        return await self.client.post(path, json=body, headers=headers)

    async def chat(self, **changes: Any) -> httpx.Response:
        return await self.post("/v1/chat/completions", {**CHAT, **changes})

    async def step_entered(self) -> None:
        """Wait until the engine thread stands before a held step."""
        assert await asyncio.to_thread(self.runner.entered.acquire, timeout=20)

    async def active(self, count: int) -> None:
        """Wait until `count` requests are in the engine's hands."""
        async with asyncio.timeout(20):
            while self.engine.num_active < count:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def exported(self) -> None:
        """Wait until the exporters have had what was reported."""
        async with asyncio.timeout(20):
            flushed = map(asyncio.wrap_future, self.context.exporters.flush())
            await asyncio.gather(*flushed, return_exceptions=True)

    async def settle(self) -> None:
        """Everything has ended, and no block is referenced."""
        async with asyncio.timeout(20):
            await self.engine.join_idle()
        await self.engine.check_integrity()
        stats = (await self.engine.stats()).cache
        assert stats.referenced == 0
        assert stats.free + stats.cached == stats.total


def make_context(
    runner: SteppedRunner,
    shape: Shape = SHAPE,
    *,
    tokenizer: Tokenizer | None = None,
    exporters: Sequence[MetricsExporter] = (),
    model_names: tuple[str, ...] = ("fake",),
    sampling_defaults: Mapping[str, float] | None = None,
    cache_clock: Callable[[], float] = time.monotonic,
    tool_parsers: Sequence[ToolParser] = (),
    tiers: Sequence[CacheTier] = (),
    seconds_a_token: float | None = None,
    **settings: object,
) -> ServerContext:
    """`settings` are names with `__` for the dot: server__max_queue=1."""
    tree = load_settings({name.replace("__", "."): value for name, value in settings.items()})
    known = tokenizer or tiny_tokenizer()
    group = ExporterGroup(exporters)
    group.start(server_info(model_names[0], shape))

    def build(on_started: Callable[[Request], None]) -> Engine:
        engine = build_engine(
            runner,
            shape,
            tokenizer=known,
            exporters=group,
            on_started=on_started,
            pin_limits=PinLimits(tree.cache.soft_pin_fraction, tree.cache.max_pinned_fraction, tree.cache.max_pins),
            cache_clock=cache_clock,
            tiers=Tiers([TierThread(tier, INFO) for tier in tiers], block_bytes=1024, observer=group),
            rules=[DemotionRule(tier.demotion) for tier in tiers],
            speculation=tree.engine.speculation,
        )
        if seconds_a_token is not None:
            engine.scheduler._promotion.speed = FixedSpeed(seconds_a_token, seconds_a_token)
        return engine

    limits = QueueLimits(tree.server.max_queue, tree.server.max_queued_tokens, tree.server.queue_timeout)
    engine = AsyncEngine(build, limits)
    return ServerContext(
        engine,
        lambda: known,
        tree,
        model_names,
        group,
        sampling_defaults=sampling_defaults or {},
        tool_parsers=tool_parsers,
        upstreams=Upstreams.load(tree.upstreams),
    )


def server_info(model_name: str, shape: Shape) -> ServerInfo:
    versions = {"version": "1", "python": "3", "torch": "2", "transformers": "5"}
    return ServerInfo(
        model_name, shape.max_model_len, shape.block_size, shape.num_blocks, "float32", "fake", "lru", versions
    )


@asynccontextmanager
async def site(
    shape: Shape = SHAPE,
    *,
    headers: Mapping[str, str] | None = None,
    exporters: Sequence[MetricsExporter] = (),
    runner: FakeModelRunner | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    """In process, over ASGI. `exporters` come before the one that records."""
    stepped, exporter = SteppedRunner(runner or fake_runner(shape)), RecordingExporter()
    context = make_context(stepped, shape, exporters=(*exporters, exporter), **options)
    app = create_app(context)
    context.engine.start()
    await context.engine.settled.wait()
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            yield Site(app, context, context.engine, stepped, exporter, client)
    finally:
        stepped.release()
        await context.upstreams.close()
        await context.engine.stop()
        for closed in context.exporters.close().values():
            await asyncio.wrap_future(closed)


@asynccontextmanager
async def live_site(
    shape: Shape = SHAPE, *, send_buffer: int | None = None, port: int = 0, **options: Any
) -> AsyncIterator[tuple[Site, str]]:
    """The same behind a real uvicorn on a port of the loopback, 0: a free one; also yields the base URL."""
    async with site(shape, **options) as running:
        config = uvicorn.Config(
            running.app, lifespan="off", ws="none", log_config=None, access_log=False, timeout_graceful_shutdown=5
        )
        server = Server(config)
        listener = socket.create_server(("127.0.0.1", port))
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield running, f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            running.runner.release()
            server.should_exit = True
            await serving


def events(text: str) -> list[Any]:
    """The data of each server-sent event; `[DONE]` stays text."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line and not line.startswith(":")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def check_error(response: httpx.Response, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """The envelope, complete; returns its inner object."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    return error
