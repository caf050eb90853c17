"""The body of a response as one of a chat, and what a chat complains of in the words of a response."""

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from openai_kv.errors import RequestError
from openai_kv.server.call import Call
from openai_kv.server.responses.conversation import Conversation
from openai_kv.server.responses.fields import LOGPROBS
from openai_kv.server.tool_fields import check_distinct

# What is not handed on under its own name.
OWN = frozenset(
    {
        *("input", "instructions", "previous_response_id", "store", "truncation", "text", "reasoning"),
        *("max_output_tokens", "max_tool_calls", "include", "top_logprobs", "tools", "tool_choice", "stream_options"),
        *("background", "context_management"),
    }
)
PATHS = (
    (r"(^|=)response_format\.json_schema\.schema", r"\1text.format.schema"),
    (r"(^|=)(tools\[\d+\])\.function", r"\1\2"),
    (r"^tool_choice\.allowed_tools", "tool_choice"),
    (r"^(tool_choice(\.tools\[\d+\])?)\.function", r"\1"),
    (r"^messages\b", "input"),
)


def chat_body(body: Mapping[str, Any], conversation: Conversation) -> dict[str, Any]:
    """As `protocol.chat_body` would have checked it; raises ParameterError for two tools of one name."""
    chat = {name: value for name, value in body.items() if name not in OWN}
    chat["messages"] = list(conversation.messages)
    if "max_output_tokens" in body:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if effort := body.get("reasoning", {}).get("effort"):
        chat["reasoning_effort"] = effort
    if wants_logprobs(body):
        chat |= {"logprobs": True, "top_logprobs": body.get("top_logprobs", 0)}
    if given := body.get("text", {}).get("format"):
        chat["response_format"] = response_format(given)
    if body.get("tools"):
        chat["tools"] = chat_tools(body["tools"])
    if "tool_choice" in body:
        chat["tool_choice"] = tool_choice(body["tool_choice"])
    return chat


def wants_logprobs(body: Mapping[str, Any]) -> bool:
    return LOGPROBS in body.get("include", ()) or body.get("top_logprobs", 0) > 0


def response_format(given: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: value for name, value in given.items() if name != "type"}
    return {"type": given["type"], **({"json_schema": inner} if inner else {})}


def chat_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    check_distinct([tool["name"] for tool in tools], "tools", "name")
    return [{"type": "function", "function": function(tool)} for tool in tools]


def function(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}


def tool_choice(given: str | Mapping[str, Any]) -> Any:
    if isinstance(given, str):
        return given
    if given["type"] == "function":
        return named(given)
    tools = [named(tool) for tool in given["tools"]]
    return {"type": "allowed_tools", "allowed_tools": {"mode": given["mode"], "tools": tools}}


def named(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool["name"]}}


@contextmanager
def in_own_words(call: Call) -> Generator[None, None, None]:
    """Around what a chat does with a body of ours: errors and warnings name the fields that the client sent."""
    num_known = len(call.notes.warnings)
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            error.message = error.message.replace(f"'{error.param}'", f"'{own_path(error.param)}'")
            error.param = own_path(error.param)
        raise
    finally:
        call.notes.warnings[num_known:] = map(own_path, call.notes.warnings[num_known:])


def own_path(path: str) -> str:
    for theirs, ours in PATHS:
        path = re.sub(theirs, ours, path)
    return path
