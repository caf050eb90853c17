"""Where schemas lie within schemas, of the keywords that grammars enforce."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
OF_SCHEMAS = frozenset({"properties", "$defs", "definitions"})  # objects whose values are schemas
LISTS = frozenset({"prefixItems", "anyOf"})
SCHEMAS = frozenset({"items", "additionalProperties"})


def mapped(schema: Schema, change: Callable[[Any], Any]) -> dict[str, Any]:
    """A copy whose inner schemas are what `change` makes of them."""
    return {name: _mapped(name, value, change) for name, value in schema.items()}


def _mapped(name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    if name in OF_SCHEMAS:
        return {key: change(inner) for key, inner in value.items()}
    if name in LISTS:
        return [change(inner) for inner in value]
    return change(value) if name in SCHEMAS else value


def walk(schema: Any) -> Iterator[Schema]:
    """Every schema in it, itself too, but for the booleans."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for name, value in schema.items():
        for inner in value.values() if name in OF_SCHEMAS else value if name in LISTS else ():
            yield from walk(inner)
        if name in SCHEMAS:
            yield from walk(value)
