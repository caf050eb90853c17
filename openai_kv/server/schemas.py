"""What a check lets through, as JSON Schema. What depends on several fields is left to the server's own checks."""

import re
from collections.abc import Callable
from functools import singledispatch
from typing import Any

from openai_kv.server.fields import (
    Accepted,
    Array,
    Boolean,
    Check,
    Choice,
    Duration,
    Either,
    FreeObject,
    Integer,
    Neutral,
    Number,
    Object,
    String,
)
from openai_kv.server.format_fields import NAME, RESPONSE_FORMAT, Name, check_response_format
from openai_kv.server.messages import PARTS, ROLES, TEXT_FIELDS, check_message
from openai_kv.server.token_fields import MAX_DIGITS, LogitBias, Prompts, TokenIds
from openai_kv.server.tool_fields import (
    ALLOWED,
    NAMED,
    TOOL,
    TOOL_CHOICES,
    Tools,
    check_tool_choice,
    function_kind,
)
from openai_kv.server.variants import Variant

Schema = dict[str, Any]


def bounded(**keywords: Any) -> Schema:
    """Without those that are None."""
    return {name: value for name, value in keywords.items() if value is not None}


@singledispatch
def schema_of(check: Any) -> Schema:
    """Checks that are functions; what isn't known here is described as anything."""
    known: dict[Any, Callable[[], Schema]] = {
        check_message: message,
        check_response_format: lambda: schema_of(RESPONSE_FORMAT),
        check_tool_choice: tool_choice,
        function_kind: lambda: {"type": "string", "enum": ["function"]},
    }
    return known[check]() if check in known else {}


@schema_of.register
def _(_check: Boolean) -> Schema:
    return {"type": "boolean"}


@schema_of.register
def _(check: Integer) -> Schema:
    return bounded(type="integer", minimum=check.minimum, maximum=check.maximum)


@schema_of.register
def _(check: Number) -> Schema:
    return bounded(type="number", minimum=check.minimum, maximum=check.maximum)


@schema_of.register
def _(check: String) -> Schema:
    pattern = f"^[^{re.escape(check.forbidden)}]*$" if check.forbidden else None
    return bounded(type="string", maxLength=check.maximum, minLength=None if check.empty else 1, pattern=pattern)


@schema_of.register
def _(check: Choice) -> Schema:
    return {"type": "string", "enum": list(check.values)}


@schema_of.register
def _(_check: Duration) -> Schema:
    """How long it may be at most isn't told."""
    return {"type": "string", "pattern": "^[1-9][0-9]{0,8}[smh]$"}


@schema_of.register
def _(check: Array) -> Schema:
    return array(schema_of(check.item), check.maximum, empty=check.empty)


@schema_of.register
def _(check: Either) -> Schema:
    return {"anyOf": [schema_of(check.text), schema_of(check.other)]}


@schema_of.register
def _(check: Neutral) -> Schema:
    return {"enum": [*check.values, None]}


@schema_of.register
def _(check: Accepted) -> Schema:
    return {**schema_of(check.check), "description": "has no effect"}


@schema_of.register
def _(check: FreeObject) -> Schema:
    names = bounded(maxLength=check.max_key) | ({"not": {"enum": sorted(check.forbidden)}} if check.forbidden else {})
    return bounded(
        type="object",
        maxProperties=check.maximum,
        propertyNames=names or None,
        additionalProperties=schema_of(check.item) if check.item else None,
    )


@schema_of.register
def _(check: Object) -> Schema:
    """An optional field may be null, one that isn't known may not be there."""
    fields = {name: schema_of(field) for name, field in check.fields.items()}
    optional = {name: {"anyOf": [field, {"type": "null"}]} for name, field in fields.items()}
    needed = {name: fields[name] for name in check.required}
    return {
        "type": "object",
        "properties": {**optional, **needed},
        "required": list(check.required),
        "additionalProperties": False,
    }


@schema_of.register
def _(check: TokenIds) -> Schema:
    token = {"type": "integer", "minimum": 0, "maximum": check.vocab_size - 1}
    return array(token, check.maximum, empty=check.empty)


@schema_of.register
def _(check: LogitBias) -> Schema:
    return {
        "type": "object",
        "maxProperties": check.maximum,
        "propertyNames": {"pattern": f"^[0-9]{{1,{MAX_DIGITS}}}$"},
        "additionalProperties": schema_of(Number(-100, 100)),
    }


@schema_of.register
def _(check: Prompts) -> Schema:
    one: list[Check] = [String(empty=check.empty), TokenIds(check.vocab_size)]
    several: list[Check] = [Array(entry, check.maximum, empty=False) for entry in one]
    return {"anyOf": [schema_of(form) for form in one + several]}


@schema_of.register
def _(_check: Name) -> Schema:
    return {"type": "string", "pattern": f"^{NAME.pattern}$"}


@schema_of.register
def _(check: Tools) -> Schema:
    """That names differ isn't told."""
    return array(schema_of(TOOL), check.maximum, empty=False)


@schema_of.register
def _(check: Variant) -> Schema:
    """Without a `type` it is of the default kind."""
    forms = [of_kind(kind, schema_of(form)) for kind, form in check.kinds.items()]
    if check.default is not None:
        form = check.kinds[check.default]
        forms.append(schema_of(Object({**form.fields, "type": Neutral(())}, form.required)))
    return {"anyOf": forms}


def tool_choice() -> Schema:
    """That names are those of tools isn't told."""
    allowed = schema_of(ALLOWED)
    kind = {"type": {"type": "string", "enum": ["allowed_tools"]}}
    allowed = {**allowed, "properties": {**allowed["properties"], **kind}}
    return {"anyOf": [schema_of(TOOL_CHOICES), schema_of(NAMED), allowed]}


def array(item: Schema, maximum: int | None, *, empty: bool) -> Schema:
    return bounded(type="array", items=item, maxItems=maximum, minItems=None if empty else 1)


def message() -> Schema:
    """Which role needs which field isn't told; other keys are the template's."""
    text = {"type": ["string", "null"]}
    calls = "of an assistant: [{id, type: function, function: {name, arguments}}], arguments being JSON text"
    fields = {
        "role": {"type": "string", "enum": list(ROLES)},
        "content": {"anyOf": [text, array({"anyOf": [part(kind) for kind in PARTS]}, None, empty=False)]},
        "tool_calls": {"description": calls},
        **dict.fromkeys(TEXT_FIELDS, text),
    }
    return {"type": "object", "properties": fields, "required": ["role"]}


def part(kind: str) -> Schema:
    return of_kind(kind, schema_of(PARTS[kind]))


def of_kind(kind: str, schema: Schema) -> Schema:
    """Of an object that says in `type` what it is."""
    fields = {**schema["properties"], "type": {"type": "string", "enum": [kind]}}
    return {**schema, "properties": fields, "required": ["type", *schema["required"]]}
