"""What a response is asked for: the checked body, and the conversation it goes on from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_kv.errors import NotFoundError
from openai_kv.request import SamplingParams
from openai_kv.server.body import in_thread_if_large
from openai_kv.server.call import Call, Schema
from openai_kv.server.protocol import check_stream
from openai_kv.server.responses.conversation import Conversation
from openai_kv.server.responses.store import StoredResponse

AS_GIVEN = (
    *("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "prompt_cache_key"),
    *("prompt_cache_retention", "safety_identifier", "user"),
)

TOOL = {"description": None, "parameters": None, "strict": False}


@dataclass(frozen=True, slots=True)
class Asked:
    """`conversation` ends with the input, `size` is what it took in bytes to get there; `warnings` are of the body."""

    body: Mapping[str, Any]
    conversation: Conversation
    size: int
    warnings: tuple[str, ...]

    def echo(self, params: SamplingParams) -> dict[str, Any]:
        """What a response repeats, with what was left open filled in."""
        body = self.body
        reasoning, text = body.get("reasoning", {}), body.get("text", {})
        return {
            **{name: body.get(name) for name in AS_GIVEN},
            "metadata": body.get("metadata", {}),
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
            "service_tier": "default" if "service_tier" in body else None,
            "store": body.get("store", True),
            "temperature": params.temperature,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": [{**TOOL, **tool} for tool in body.get("tools", [])],
            "top_logprobs": body.get("top_logprobs", 0),
            "top_p": params.top_p,
            "truncation": body.get("truncation", "disabled"),
        }


async def read_asked(call: Call, schema: Schema) -> Asked:
    """Raises RequestError for a bad body, and NotFoundError if what it goes on from is not there."""
    body = await call.parse(schema)
    check_stream(body)
    before = previous(call, body)
    said = before.conversation if before else Conversation()
    conversation = await in_thread_if_large(call.body, lambda _: said.with_items(body["input"], "input"))
    size = len(call.body) + (before.size if before else 0)
    return Asked(body, conversation, size, tuple(call.notes.warnings))


def previous(call: Call, body: Mapping[str, Any]) -> StoredResponse | None:
    response_id = body.get("previous_response_id")
    if response_id is None:
        return None
    found = call.context.responses.get(response_id, owner_of(call))
    if found is None:
        message = "There is no response with the id of 'previous_response_id', or no more."
        raise NotFoundError(message, param="previous_response_id", code="previous_response_not_found")
    return found


def owner_of(call: Call) -> bytes:
    return call.key.digest if call.key else b""
