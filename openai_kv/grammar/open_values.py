"""Bounds for what a schema leaves open: JSON has none, and a small model that may write anything writes without end.

llama.cpp's grammars and xgrammar's strict mode forbid members beside described ones; here they may come, not for ever.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from openai_kv.grammar.subschemas import Schema, mapped, walk

MAX_LEVELS = 4  # of arrays and objects in each other
MAX_ITEMS = 16
MAX_MEMBERS = 16
MAX_CHARACTERS = 500
MAX_KEY_CHARACTERS = 64
ALL_KINDS = ("null", "boolean", "number", "string", "array", "object")
PLAIN_KINDS = ALL_KINDS[:4]
LONG_KEYS = {f"^[\\s\\S]{{{MAX_KEY_CHARACTERS + 1}}}": False}
MEETING = frozenset({"anyOf", "$ref"})
DEFINING = frozenset({"$defs", "definitions"})
LENGTH_KEYWORDS = frozenset({"maxLength", "pattern", "format"})


def bound_open_values(schema: Schema) -> Schema:
    """A schema that allows nothing else, and of what `schema` leaves open only so much.

    Where `anyOf` or `$ref` stand beside other keywords a bound would meet what is spelled out elsewhere: all stays.
    """
    if any(schemas_meet(inner) for inner in walk(schema)):
        return schema
    defined = schema.get("$defs", {})
    open_values = OpenValues(free_prefix(defined))
    bounded = open_values.bound(schema)
    if bounded == schema:
        return schema
    return {**bounded, "$defs": {**bounded.get("$defs", {}), **open_values.definitions()}}


def schemas_meet(schema: Schema) -> bool:
    return bool(schema.keys() & MEETING) and len(schema.keys() - DEFINING) > 1


def is_open(schema: Any) -> bool:
    return schema is True or schema == {}


def free_prefix(names: Collection[str]) -> str:
    prefix = "open_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


@dataclass(frozen=True, slots=True)
class OpenValues:
    """`prefix`: of the definitions of any value, each with its number of levels at the end of its name."""

    prefix: str

    def bound(self, schema: Any) -> Any:
        if is_open(schema):
            return self.any_value(MAX_LEVELS)
        if not isinstance(schema, Mapping) or schema.keys() & {"enum", "const"}:
            return schema
        inner = mapped(schema, self.bound)
        return inner if schema.keys() & MEETING else {**inner, **self.bounds(schema, MAX_LEVELS - 1)}

    def any_value(self, levels: int) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self.prefix}{levels}"}

    def definitions(self) -> dict[str, Any]:
        plain = {"type": list(PLAIN_KINDS), "maxLength": MAX_CHARACTERS}
        nested = {f"{self.prefix}{levels}": self.bounds({}, levels - 1) for levels in range(1, MAX_LEVELS + 1)}
        return {f"{self.prefix}0": plain, **nested}

    def bounds(self, schema: Schema, levels: int) -> dict[str, Any]:
        """What `schema` lacks; items and members that it doesn't describe are values of so many levels."""
        kinds = schema.get("type", ALL_KINDS)
        return {
            **(string_bounds(schema) if "type" not in schema else {}),
            **(self.array_bounds(schema, levels) if "array" in kinds else {}),
            **(self.object_bounds(schema, levels) if "object" in kinds else {}),
        }

    def array_bounds(self, schema: Schema, levels: int) -> dict[str, Any]:
        items = {"items": self.any_value(levels)} if is_open(schema.get("items", True)) else {}
        if "maxItems" in schema or ("type" in schema and not items):
            return items
        return {**items, "maxItems": max(MAX_ITEMS, schema.get("minItems", 0), len(schema.get("prefixItems", [])))}

    def object_bounds(self, schema: Schema, levels: int) -> dict[str, Any]:
        others = schema.get("additionalProperties", True)
        if others is False or ("type" in schema and not is_open(others)):
            return {}
        names, required = {*schema.get("properties", {})}, {*schema.get("required", [])}
        members: dict[str, Any] = {"additionalProperties": self.any_value(levels)} if is_open(others) else {}
        if names <= required:  # the library can't count members that may be left out
            members["maxProperties"] = MAX_MEMBERS + len(required)
        if all(len(name) <= MAX_KEY_CHARACTERS for name in names | required):
            members["patternProperties"] = LONG_KEYS
        return members


def string_bounds(schema: Schema) -> dict[str, Any]:
    is_bounded = schema.keys() & LENGTH_KEYWORDS
    return {} if is_bounded else {"maxLength": max(MAX_CHARACTERS, schema.get("minLength", 0))}
