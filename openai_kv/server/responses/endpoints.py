"""POST /v1/responses and /v1/responses/input_tokens; GET and DELETE /v1/responses/{id}."""

import asyncio
from collections.abc import Mapping

from openai_kv.errors import NotFoundError
from openai_kv.server.call import Call
from openai_kv.server.chat import carry_out, prepare
from openai_kv.server.fields import Check, Neutral
from openai_kv.server.responses.asked import owner_of, read_asked
from openai_kv.server.responses.chat_terms import in_own_words
from openai_kv.server.responses.fields import countable_body, response_body
from openai_kv.server.responses.planning import plan_response, render_ready
from openai_kv.server.responses.reply import ResponseReply
from openai_kv.server.snapshot import read_query

QUERY: Mapping[str, Check] = {"stream": Neutral(("false",), "A response that is over has no events.")}


async def create_response(call: Call) -> None:
    asked = await read_asked(call, response_body)
    plan = await plan_response(call, asked)
    await carry_out(call, plan.body, plan.plan, ResponseReply(call, asked, plan))


async def count_input_tokens(call: Call) -> None:
    """Checks what `create_response` would, but for the length of the context."""
    asked = await read_asked(call, countable_body)
    with in_own_words(call):
        body = render_ready(call, asked, asked.conversation)
        marked, _, _ = await asyncio.to_thread(prepare, call, body)
    await call.answer({"object": "response.input_tokens", "input_tokens": len(marked.token_ids)})


async def get_response(call: Call) -> None:
    read_query(call, QUERY)
    found = call.context.responses.get(response_id(call), owner_of(call))
    if found is None:
        raise not_found()
    await call.answer_bytes(found.answer)


async def delete_response(call: Call) -> None:
    if not call.context.responses.delete(response_id(call), owner_of(call)):
        raise not_found()
    await call.answer({"id": response_id(call), "object": "response", "deleted": True})


def response_id(call: Call) -> str:
    return str(call.scope["path_params"]["id"])


def not_found() -> NotFoundError:
    return NotFoundError("There is no such response, or no more.", code="response_not_found")
