"""Chat messages: checked as the contract has them, and as a chat template wants them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_kv.errors import RequestError
from openai_kv.server.body import parse_object
from openai_kv.server.fields import Array, Check, Choice, Duration, Either, Mark, Notes, Object, String
from openai_kv.server.violations import missing, unsupported, wrong_type, wrong_value

ROLES = ("system", "developer", "user", "assistant", "tool")
MEDIA = ("image_url", "input_audio", "file")

BREAKPOINT = Object({"mode": Choice(("explicit",)), "ttl": Duration()}, required=("mode",))
TEXT_PART = Object({"type": String(), "text": String(), "prompt_cache_breakpoint": BREAKPOINT}, required=("text",))
REFUSAL_PART = Object({"type": String(), "refusal": String()}, required=("refusal",))
PARTS: Mapping[str, Check] = {"text": TEXT_PART, "refusal": REFUSAL_PART}


@dataclass(frozen=True, slots=True)
class Part:
    """One content part, returned as its text and, if it has one, its breakpoint."""

    role: str

    def __call__(self, value: Any, path: str, notes: Notes) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        kind = value.get("type")
        if kind is None:
            raise missing(f"{path}.type")
        if kind in MEDIA:
            raise unsupported(f"{path}.type", "Only text can be read.")
        allowed = ("text", "refusal") if self.role == "assistant" else ("text",)
        kind = Choice(allowed)(kind, f"{path}.type", notes)
        part = PARTS[kind](value, path, notes)
        return {"text": part[kind], "breakpoint": part.get("prompt_cache_breakpoint")}


def check_tool_call(value: Any, path: str, notes: Notes) -> dict[str, Any]:
    """A call the model made earlier; its arguments become an object when they parse, which is what templates expect."""
    call = checked_keys(value, path, {"id": String(), "type": Choice(("function",)), "function": check_function}, notes)
    return {"type": "function", **call}


def check_function(value: Any, path: str, notes: Notes) -> dict[str, Any]:
    function = checked_keys(value, path, {"name": String(empty=False), "arguments": String()}, notes)
    return {**function, "arguments": parsed_arguments(function["arguments"])}


def checked_keys(value: Any, path: str, checks: Mapping[str, Check], notes: Notes) -> dict[str, Any]:
    """All of `checks` required but `type`; other keys stay, they are the template's."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    for name in checks:
        if value.get(name) is None and name != "type":
            raise missing(f"{path}.{name}")
    given = {name: check for name, check in checks.items() if value.get(name) is not None}
    return {**value, **{name: check(value[name], f"{path}.{name}", notes) for name, check in given.items()}}


def parsed_arguments(text: str) -> Any:
    """Under the limits of a body: text that would not do as one stays text."""
    try:
        return parse_object(text.encode())
    except RequestError:
        return text


TOOL_CALLS = Array(check_tool_call, empty=False)
TEXT_FIELDS: Mapping[str, Check] = {
    name: String() for name in ("name", "tool_call_id", "reasoning_content", "reasoning", "refusal")
}


def check_message(value: Any, path: str, notes: Notes) -> dict[str, Any]:
    """The message as the chat template gets it: `content` is text, `developer` is `system`."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    message = {name: item for name, item in value.items() if item is not None}
    for name in TEXT_FIELDS.keys() & message.keys():
        TEXT_FIELDS[name](message[name], f"{path}.{name}", notes)
    role = check_role(message, path, notes)
    if role == "assistant" and "tool_calls" in message:
        message["tool_calls"] = TOOL_CALLS(message["tool_calls"], f"{path}.tool_calls", notes)
    message["content"] = check_content(message, path, notes)
    if "reasoning" in message:
        message.setdefault("reasoning_content", message["reasoning"])
    return {**message, "role": "system" if role == "developer" else role}


def check_role(message: Mapping[str, Any], path: str, notes: Notes) -> str:
    if "role" not in message:
        raise missing(f"{path}.role")
    role = Choice(ROLES)(message["role"], f"{path}.role", notes)
    if role == "tool" and "tool_call_id" not in message:
        raise missing(f"{path}.tool_call_id")
    return role


def check_content(message: Mapping[str, Any], path: str, notes: Notes) -> str:
    content = message.get("content")
    if content is None and "tool_calls" in message and message["role"] == "assistant":
        return ""
    if content is None:
        raise missing(f"{path}.content")
    parts = Array(Part(message["role"]), empty=False)
    checked = Either(String(), parts)(content, f"{path}.content", notes)
    return checked if isinstance(checked, str) else join_parts(checked, f"{path}.content", notes)


def join_parts(parts: Sequence[Mapping[str, Any]], path: str, notes: Notes) -> str:
    """One line after the other; where a breakpoint comes to lie is noted."""
    text = ""
    for index, part in enumerate(parts):
        text += ("\n" if index else "") + part["text"]
        if part["breakpoint"] is not None:
            ttl = part["breakpoint"].get("ttl")
            notes.marks.append(Mark(f"{path}[{index}]", message_number(path), len(text), ttl))
    return text


def message_number(path: str) -> int:
    """3 of `messages[3].content`."""
    return int(path.partition("[")[2].partition("]")[0])


def count_turns(messages: Sequence[Mapping[str, Any]]) -> int:
    """User messages, at least 1: what cache policies know as the turn of a chat."""
    return max(1, [message["role"] for message in messages].count("user"))


def check_continuation(messages: Sequence[Mapping[str, Any]]) -> None:
    """`continue_final_message` needs something of the assistant's to continue."""
    if messages[-1]["role"] != "assistant":
        path = f"messages[{len(messages) - 1}].role"
        raise wrong_value(path, "assistant to be continued", messages[-1]["role"])
