"""GET /health, /ready, /version and /metrics."""

import asyncio
import platform
from importlib import metadata

from openai_kv import __version__
from openai_kv.engine.async_engine import EngineState
from openai_kv.errors import NotFoundError, UnavailableError
from openai_kv.server.call import Call
from openai_kv.server.envelope import encode, envelope, error_headers

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
    await call.answer(
        {
            "version": __version__,
            "api": 1,
            "python": platform.python_version(),
            "torch": metadata.version("torch"),
            "transformers": metadata.version("transformers"),
            "model": call.context.model_names[0],
        }
    )


async def metrics(call: Call) -> None:
    content = await asyncio.to_thread(call.context.exporters.scrape)
    if content is None:
        raise NotFoundError("No metrics exporter offers a page.")
    await call.respond(content, media_type=METRICS_TYPE)
