"""A chat message as JSON Schema. What depends on the role is left to the server's own checks."""

from collections.abc import Sequence
from typing import Any

TEXT = {"type": ["string", "null"]}


def message_schema(roles: Sequence[str], parts: Sequence[str], texts: Sequence[str]) -> dict[str, Any]:
    """`parts`: kinds of content; `texts`: fields that hold text. Other keys are the template's."""
    content = {"type": "array", "minItems": 1, "items": {"anyOf": [part_schema(kind) for kind in parts]}}
    calls = "of an assistant: [{id, type: function, function: {name, arguments}}], arguments being JSON text"
    fields = {
        "role": {"type": "string", "enum": list(roles)},
        "content": {"anyOf": [TEXT, content]},
        "tool_calls": {"description": calls},
        **dict.fromkeys(texts, TEXT),
    }
    return {"type": "object", "properties": fields, "required": ["role"]}


def part_schema(kind: str) -> dict[str, Any]:
    fields = {"type": {"type": "string", "enum": [kind]}, kind: {"type": "string"}}
    return {"type": "object", "properties": fields, "required": ["type", kind], "additionalProperties": False}
