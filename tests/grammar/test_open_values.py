import json
import random
from typing import Any

import jsonschema
import pytest

from openai_kv.grammar.open_values import bound_open_values
from openai_kv.grammar.schema import check_schema
from tests.grammar.grammars import LIMITS, accepts, of_schema, walk

LONG, TOO_LONG = "x" * 500, "x" * 501
MEMBERS = {f"k{number}": 1 for number in range(16)}
# An open schema, the most that may be written, and what is beyond.
BOUNDS: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({}, [1, None, LONG, [1] * 16, MEMBERS, {"k" * 64: [[{}]]}], [TOO_LONG, [1] * 17, MEMBERS | {"k": 1}]),
    ({}, [[[[[1]]]], {"a": {"a": {"a": {"a": 1}}}}], [[[[[[]]]]], {"a": {"a": {"a": {"a": {}}}}}, {"k" * 65: 1}]),
    ({"minLength": 2}, ["ab", LONG, 1, [LONG]], ["a", TOO_LONG, [TOO_LONG]]),
    ({"minLength": 600}, ["x" * 600, 1], ["x" * 599, "x" * 601]),
    ({"minItems": 20}, [[1] * 20, 1], [[1] * 19, [1] * 21]),
    ({"items": {"type": "null"}}, [[None] * 16, LONG], [[None] * 17, TOO_LONG]),
    ({"type": "array"}, [[LONG] * 16], [[1] * 17, [TOO_LONG]]),
    ({"type": "object"}, [MEMBERS, {"a": LONG}], [MEMBERS | {"k": 1}, {"a": TOO_LONG}]),
    ({"type": "object", "required": ["a"]}, [{"a": 1, **MEMBERS}], [MEMBERS, {"a": 1, "k": 1, **MEMBERS}]),
    ({"type": "object", "properties": {"a": {}}}, [{"a": LONG, "b": LONG}], [{"a": TOO_LONG}, {"b": TOO_LONG}]),
    ({"anyOf": [{"type": "null"}, True]}, [None, LONG], [TOO_LONG]),
    ({"$ref": "#/$defs/open_4", "$defs": {"open_4": True}}, [LONG], [TOO_LONG]),
]  # fmt: skip
SPELLED_OUT: list[tuple[dict[str, Any], Any]] = [
    ({"type": "string"}, TOO_LONG),
    ({"type": ["string", "null"], "minLength": 2}, TOO_LONG),
    ({"pattern": "^x*$"}, TOO_LONG),
    ({"maxLength": 600}, "x" * 600),
    ({"const": [[[[[TOO_LONG]]]]]}, [[[[[TOO_LONG]]]]]),
    ({"enum": [{"a": TOO_LONG}], "properties": {"a": {}}}, {"a": TOO_LONG}),
    ({"type": "array", "items": {"type": "string"}}, [TOO_LONG] * 17),
    ({"maxItems": 20}, [1] * 20),
    ({"type": "object", "additionalProperties": {"type": "string"}}, dict.fromkeys([*MEMBERS, "k" * 65], TOO_LONG)),
    ({"type": "object", "properties": {"k" * 65: {"type": "null"}}}, {"k" * 65: None}),
    ({"type": "object", "required": ["a"], "anyOf": [{"properties": {"a": {}}}]}, {"a": TOO_LONG}),
    ({"$ref": "#/$defs/a", "maxLength": 600, "$defs": {"a": {}}}, "x" * 600),
]  # fmt: skip


def text_of(value: Any) -> str:
    return json.dumps(value)


@pytest.mark.parametrize(("schema", "most", "beyond"), BOUNDS, ids=lambda value: str(value)[:40])
def test_what_is_left_open_comes_to_an_end(schema: dict[str, Any], most: list[Any], beyond: list[Any]) -> None:
    grammar = of_schema(schema)
    assert [value for value in most if not accepts(grammar, text_of(value))] == []
    assert [value for value in beyond if accepts(grammar, text_of(value))] == []


@pytest.mark.parametrize(("schema", "value"), SPELLED_OUT, ids=lambda value: str(value)[:40])
def test_what_is_spelled_out_has_no_other_bounds(schema: dict[str, Any], value: Any) -> None:
    assert accepts(of_schema(schema), text_of(value))


@pytest.mark.parametrize("schema", [case[0] for case in BOUNDS], ids=lambda value: str(value)[:40])
def test_nothing_else_becomes_valid(schema: dict[str, Any]) -> None:
    grammar, rng = of_schema(schema), random.Random(1)
    values = [value for _ in range(20) if (value := walk(grammar, rng)) is not None]
    assert values or "minItems" in schema
    for value in values:
        jsonschema.validate(value, schema)


def test_a_schema_that_leaves_nothing_open_stays_as_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    closed = {**schema, "additionalProperties": False}
    assert bound_open_values(closed) is closed
    assert bound_open_values(schema) != schema


def test_a_schema_that_lost_something_stays_as_it_is() -> None:
    assert check_schema({"oneOf": [{"type": "string"}], "items": {}}, LIMITS).schema == {"items": {}}


def test_definitions_of_the_clients_are_not_replaced() -> None:
    defined = {"open_4": {"type": "null"}, "open__": {"type": "null"}}
    bounded = check_schema({"$defs": defined, "items": True}, LIMITS).schema
    assert defined.items() <= bounded["$defs"].items()
