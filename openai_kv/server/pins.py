"""POST, GET and DELETE /cache/pin: prefixes that no policy may evict."""

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from openai_kv.engine.engine_request import EngineRequest
from openai_kv.errors import NotFoundError
from openai_kv.metrics import PinRecord
from openai_kv.request import PinOrder, RequestInfo, Retention, SamplingParams
from openai_kv.server.auth import Key
from openai_kv.server.call import Call
from openai_kv.server.generation import Generation, cache_namespace
from openai_kv.server.messages import count_turns
from openai_kv.server.prompts import check_template_options, encode_prompt, render_messages
from openai_kv.server.protocol import exactly_one, pin_body
from openai_kv.server.retention import default_ttl
from openai_kv.server.sampling import output_budget
from openai_kv.server.violations import wrong_value


async def create_pin(call: Call) -> None:
    """Without an answer there is no pin: whatever ends the call early takes it back."""
    body = await call.parse(pin_body)
    source = exactly_one(body, "prompt", "messages", "prompt_token_ids")
    check_template_options(body)
    key = key_of(call, body)
    prompt = await asyncio.to_thread(to_token_ids, call, body, source)
    output_budget(len(prompt), 0, call.context.engine.info.max_model_len, source)
    request = prefill(call, body, key, prompt)
    with ExitStack() as undo:
        undo.callback(call.context.engine.let_go, request.info.request_id)
        record = await pin(call, body, request)
        await call.answer(describe(record))
        undo.pop_all()


def key_of(call: Call, body: Mapping[str, Any]) -> Key | None:
    """The key whose cache is meant; raises ParameterError for an id that none has."""
    key_id = body.get("key_id")
    if key_id is None:
        return call.key
    key = call.authenticator.by_id(key_id)
    if key is None:
        raise wrong_value("key_id", "the id of a key of this server", key_id)
    return key


def to_token_ids(call: Call, body: Mapping[str, Any], source: str) -> list[int]:
    tokenizer = call.context.get_tokenizer()
    if source == "messages":
        return render_messages(tokenizer, {**body, "add_generation_prompt": False}, cache_namespace(call, body))
    return encode_prompt(tokenizer, body[source], body)


def prefill(call: Call, body: Mapping[str, Any], key: Key | None, prompt: list[int]) -> EngineRequest:
    """Computes what is missing, samples nothing, and pins the prompt while it still holds it."""
    info = RequestInfo(
        request_id=f"pin_{uuid.uuid4().hex}",
        num_prompt_tokens=len(prompt),
        namespace=call.authenticator.namespace(key, body.get("cache_salt")),
        kind="chat" if "messages" in body else "completion",
        turn=count_turns(body.get("messages", [])),
    )
    order = PinOrder(info.request_id, body.get("ttl", default_ttl(call)), body.get("label"))
    return EngineRequest(replace(info, retention=Retention(pin=order)), tuple(prompt), SamplingParams(max_tokens=0))


async def pin(call: Call, body: Mapping[str, Any], request: EngineRequest) -> PinRecord:
    """Asks again after computing: a reset may have come between."""
    engine, order = call.context.engine, request.info.retention.pin
    assert order is not None
    while (record := await engine.pin(order, request.info.namespace, request.prompt_token_ids)) is None:
        with Generation(call, body, [request]) as generation:
            async for _ in generation.batches():
                pass
    return record


async def list_pins(call: Call) -> None:
    call.context.require_ready()
    records = await call.context.engine.pins()
    await call.answer({"pins": [{**describe(record), "hits": record.hits} for record in records]})


async def delete_pin(call: Call) -> None:
    call.context.require_ready()
    pin_id = call.scope["path_params"]["id"]
    if not await call.context.engine.unpin(pin_id):
        raise NotFoundError("There is no such pin, or no more.", code="pin_not_found")
    await call.answer({"id": pin_id, "deleted": True})


def describe(record: PinRecord) -> dict[str, Any]:
    return {
        "id": record.pin_id,
        "label": record.label,
        "tokens": record.num_tokens,
        "blocks": record.num_blocks,
        "cached_tokens": record.num_cached_tokens,
        "created": record.created,
        "expires_at": record.expires_at,
    }
