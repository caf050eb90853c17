"""GET /v1/models and /v1/models/{id}: ours, and those of upstreams."""

import asyncio
from typing import Any

from openai_kv.errors import NotFoundError, UpstreamError
from openai_kv.server.call import Call, model_not_found


async def list_models(call: Call) -> None:
    call.context.require_ready()
    data = [describe(call, name) for name in call.context.listed_models()]
    data += [describe_remote(call, name) for name in await remote_models(call)]
    await call.answer({"object": "list", "data": data})


async def remote_models(call: Call) -> list[str]:
    """Exact names, then what the upstreams of globs have; each only where requests for it would go."""
    context = call.context
    exact = [name for name in context.upstreams.names if context.upstream_for(name)]
    try:
        hops = context.upstreams.next_hops(call.headers)
    except UpstreamError:
        return exact
    globs = context.upstreams.globs
    lists = await asyncio.gather(*(glob.models.get(hops) for glob in globs))
    listed = zip(globs, lists, strict=True)
    return exact + [name for glob, names in listed for name in names if context.upstream_for(name) is glob]


async def get_model(call: Call) -> None:
    name = call.scope["path_params"]["id"]
    if not name:
        raise NotFoundError("There is no such URL here.")
    if call.context.upstream_for(name):
        await call.answer(describe_remote(call, name))
        return
    if not call.context.serves(name):
        raise model_not_found(name, None)
    call.context.require_ready()
    await call.answer(describe(call, name))


def describe(call: Call, name: str) -> dict[str, Any]:
    return entry(call, name, "openai-kv", call.context.engine.info.max_model_len)


def describe_remote(call: Call, name: str) -> dict[str, Any]:
    """How much it takes is known to the upstream only."""
    return entry(call, name, "upstream", None)


def entry(call: Call, name: str, owner: str, max_model_len: int | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(call.context.start_time),
        "owned_by": owner,
        "shutdown_date": None,
        "max_model_len": max_model_len,
    }
