"""Checks of `response_format` and of what tools share with it; schemas themselves are looked at off the event loop."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_kv.server.fields import Boolean, Choice, FreeObject, Notes, Object, String
from openai_kv.server.violations import excluded, join, misplaced, missing, wrong_type, wrong_value

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Name:
    """What OpenAI lets schemas and functions be called."""

    def __call__(self, value: Any, path: str, _notes: Notes) -> str:
        if not isinstance(value, str):
            raise wrong_type(path, "a string", value)
        if not NAME.fullmatch(value):
            raise wrong_value(path, "1 to 64 letters, digits, - or _", value)
        return value


JSON_SCHEMA = Object(
    {"name": Name(), "description": String(), "schema": FreeObject(), "strict": Boolean()}, ("name", "schema")
)
RESPONSE_FORMAT = Object(
    {"type": Choice(("text", "json_object", "json_schema")), "json_schema": JSON_SCHEMA}, ("type",)
)


def check_response_format(value: Any, path: str, notes: Notes) -> Mapping[str, Any]:
    """As it is, complete and free of contradiction."""
    if isinstance(value, dict) and "schema" in value and "json_schema" not in value:
        raise misplaced(join(path, "schema"), join(path, "json_schema.schema"))
    checked = RESPONSE_FORMAT(value, path, notes)
    wants_schema = checked["type"] == "json_schema"
    if wants_schema and "json_schema" not in checked:
        raise missing(join(path, "json_schema"))
    if "json_schema" in checked and not wants_schema:
        inner = join(path, "json_schema")
        raise excluded(f"Parameter '{inner}' needs '{path}.type' to be json_schema.", inner)
    return checked
