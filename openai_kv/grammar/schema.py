"""JSON schemas as clients send them: checked, bounded, and cut down to what a grammar can enforce."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jsonschema
from llguidance import LLMatcher

from openai_kv.grammar.cost import MAX_SIZE, MAX_STATES, Measure, counting_states
from openai_kv.grammar.dates import with_real_dates
from openai_kv.grammar.open_values import bound_open_values
from openai_kv.grammar.subschemas import LISTS, OF_SCHEMAS, SCHEMAS, Schema

WHOLE_NUMBERS = frozenset({"minItems", "maxItems", "minLength", "maxLength"})
ASSERTIONS = WHOLE_NUMBERS | {
    "type", "required", "enum", "const", "$ref", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf",
}  # fmt: skip
ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated"})
MAX_EXACT = 2**53
FORMATS = frozenset({"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})


class SchemaError(Exception):
    """The schema can't be used; `path` leads to what is wrong, from the schema's root."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """Bytes as JSON, and levels of nesting."""

    max_bytes: int
    max_depth: int


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """`schema`: nothing in it that can't be enforced, open values bounded; `unenforced`: paths of what was left out."""

    schema: Schema
    unenforced: tuple[str, ...]


def check_schema(schema: Schema, limits: SchemaLimits) -> CheckedSchema:
    """Raises SchemaError if it is too large, malformed, or refers to what isn't in it."""
    if depth(schema) > limits.max_depth:
        raise SchemaError(f"is nested deeper than {limits.max_depth} levels")
    size = len(json.dumps(schema, ensure_ascii=False).encode())
    if size > limits.max_bytes:
        raise SchemaError(f"has {size} bytes; at most {limits.max_bytes} are allowed")
    check_form(schema)
    reader = SchemaReader()
    enforced = reader.read(schema, "")
    if not reader.unenforced:  # else what looks open may be spelled out in what was left out
        enforced = bound_open_values(enforced)
    if Measure(enforced).total() > MAX_SIZE:
        raise SchemaError("combines too many alternatives")
    return CheckedSchema(enforced, tuple(reader.unenforced))


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def check_form(schema: Schema) -> None:
    """By the meta-schema of draft 2020-12, whatever `$schema` says."""
    known = {name: value for name, value in schema.items() if name != "$schema"}
    try:
        jsonschema.Draft202012Validator.check_schema(known)
    except jsonschema.SchemaError as error:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path)
        raise SchemaError("is malformed", path) from None


@dataclass(slots=True)
class SchemaReader:
    unenforced: list[str] = field(default_factory=list)
    multiples: list[int | float] = field(default_factory=list)

    def read(self, schema: Any, path: str) -> Any:
        """The schema without what can't be enforced, which is noted."""
        if isinstance(schema, bool):
            return schema
        enforced = {
            name: self.value(name, item, f"{path}.{name}")
            for name, item in schema.items()
            if name not in ANNOTATIONS and self.is_enforced(name, item, f"{path}.{name}")
        }
        return with_real_dates(enforced)

    def is_enforced(self, name: str, value: Any, path: str) -> bool:
        match name:
            case "format":
                known = value in FORMATS
            case "pattern":
                known = can_match(value)
            case "multipleOf":
                known = is_exact(value) and self.can_count(value)
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum":
                known = is_exact(value)
            case "enum" | "const":
                known = is_exact(value) and can_write(value)
            case "properties" | "required":
                known = can_write(list(value))
            case _:
                known = name in OF_SCHEMAS | LISTS | SCHEMAS | ASSERTIONS
        if not known:
            self.unenforced.append(path)
        return known

    def can_count(self, multiple: int | float) -> bool:
        known = counting_states([*self.multiples, multiple]) <= MAX_STATES
        self.multiples += [multiple] if known else []
        return known

    def value(self, name: str, value: Any, path: str) -> Any:
        if name in OF_SCHEMAS:
            return {key: self.read(item, f"{path}.{key}") for key, item in value.items()}
        if name in LISTS:
            return [self.read(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if name in SCHEMAS:
            return self.read(value, path)
        if name == "$ref" and value != "#" and not value.startswith("#/"):
            raise SchemaError("may refer to parts of this schema only", path)
        return int(value) if name in WHOLE_NUMBERS else value


def can_write(value: Any) -> bool:
    r"""Whether its texts need no \u: see `JSON_OPTIONS` of the grammars."""
    return "\\u" not in json.dumps(value, ensure_ascii=False).replace("\\\\", "")


def is_exact(value: Any) -> bool:
    """Whether its numbers are of those that doubles tell from their neighbours, with which the library computes.

    It writes others wrongly, and the constant -2**63 ends the process.
    """
    if isinstance(value, Mapping | list):
        return all(map(is_exact, value.values() if isinstance(value, Mapping) else value))
    return not isinstance(value, int | float) or abs(value) <= MAX_EXACT


def can_match(pattern: str) -> bool:
    """Whether the pattern is within what automata can do: no look-around, no back references."""
    grammar = LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern})
    is_error, _ = LLMatcher.validate_grammar_with_warnings(grammar)
    return not is_error
