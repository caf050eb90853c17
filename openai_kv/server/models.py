"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from openai_kv.errors import NotFoundError
from openai_kv.server.call import Call, model_not_found


async def list_models(call: Call) -> None:
    call.context.require_ready()
    data = [describe(call, name) for name in call.context.listed_models()]
    await call.answer({"object": "list", "data": data})


async def get_model(call: Call) -> None:
    name = call.scope["path_params"]["id"]
    if not name:
        raise NotFoundError("There is no such URL here.")
    if not call.context.serves(name):
        raise model_not_found(name, None)
    call.context.require_ready()
    await call.answer(describe(call, name))


def describe(call: Call, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(call.context.start_time),
        "owned_by": "openai-kv",
        "shutdown_date": None,
        "max_model_len": call.context.engine.info.max_model_len,
    }
