"""GET /health, /ready, /version and /metrics."""

import asyncio
import platform
from collections.abc import Sequence
from concurrent.futures import Future
from importlib import metadata

from openai_kv import __version__
from openai_kv.engine.async_engine import EngineState
from openai_kv.errors import ExporterUnavailableError, InternalError, NotFoundError, UnavailableError
from openai_kv.server.call import Call
from openai_kv.server.envelope import encode, envelope, error_headers

SCRAPE_SECONDS = 5
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(call: Call) -> None:
    """Liveness: also while loading and draining."""
    if call.context.engine.state is EngineState.DEAD:
        call.context.require_ready()
    await call.answer({"status": "ok"})


async def ready(call: Call) -> None:
    refusal = why_not_ready(call)
    if refusal is None:
        await call.answer({"status": "ready"})
        return
    status = {"model_loading": "loading", "draining": "draining"}.get(refusal.code, "dead")
    content = encode({"status": status, **envelope(refusal)})
    await call.respond(content, status=refusal.status, headers=error_headers(refusal))


def why_not_ready(call: Call) -> UnavailableError | None:
    try:
        call.context.require_ready()
    except UnavailableError as refusal:
        return refusal
    return call.context.lifecycle.refusal()


async def version(call: Call) -> None:
    await call.answer({**versions(), "api": 1, "model": call.context.model_names[0]})


def versions() -> dict[str, str]:
    """What the metric `openai_kv_build_info` tells too."""
    packages = {name: metadata.version(name) for name in ("torch", "transformers")}
    return {"version": __version__, "python": platform.python_version(), **packages}


async def metrics(call: Call) -> None:
    pages = call.context.exporters.scrape()
    try:
        async with asyncio.timeout(SCRAPE_SECONDS):
            content = await first_page(pages)
    except (TimeoutError, ExporterUnavailableError):
        raise InternalError("The metrics exporter does not answer.") from None
    if content is None:
        raise NotFoundError("No metrics exporter offers a page.")
    await call.respond(content, media_type=METRICS_TYPE)


async def first_page(pages: Sequence["Future[bytes | None]"]) -> bytes | None:
    """Of the first exporter that has one; those that are left waiting in a queue are cancelled.

    Raises ExporterUnavailableError if there is none, but one that might have had one could not be asked.
    """
    failure: ExporterUnavailableError | None = None
    try:
        for page in pages:
            try:
                content = await asyncio.wrap_future(page)
            except ExporterUnavailableError as error:
                failure = error
                continue
            if content is not None:
                return content
        if failure is not None:
            raise failure
        return None
    finally:
        for page in pages:
            page.cancel()
