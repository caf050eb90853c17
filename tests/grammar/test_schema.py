from typing import Any

import pytest

from openai_kv.grammar.schema import CheckedSchema, SchemaError, SchemaLimits, check_schema

LIMITS = SchemaLimits(max_bytes=2000, max_depth=8)


def check(schema: dict[str, Any]) -> CheckedSchema:
    return check_schema(schema, LIMITS)


def test_what_can_be_enforced_stays_and_annotations_go() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "T",
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 5.0}, "not": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"anyOf": [{"const": {"not": 1}}, False]}},
        "required": ["title"],
        "additionalProperties": False,
    }
    checked = check(schema)
    assert checked.unenforced == ()
    assert checked.schema == {
        "type": "object",
        "properties": {"title": {"type": "string", "maxLength": 5}, "not": {"$ref": "#/$defs/x"}},
        "$defs": {"x": {"anyOf": [{"const": {"not": 1}}, False]}},
        "required": ["title"],
        "additionalProperties": False,
    }


def test_what_can_not_is_left_out_and_named_by_its_path() -> None:
    schema = {
        "properties": {"a": {"oneOf": [{}], "format": "uri"}, "b": {"items": {"pattern": "(?=x)"}}},
        "anyOf": [{"uniqueItems": True}],
        "x-guidance": {"lenient": True},
    }
    checked = check(schema)
    assert checked.unenforced == (
        ".properties.a.oneOf",
        ".properties.a.format",
        ".properties.b.items.pattern",
        ".anyOf[0].uniqueItems",
        ".x-guidance",
    )
    assert checked.schema == {"properties": {"a": {}, "b": {"items": {}}}, "anyOf": [{}]}


def test_characters_that_only_a_code_can_write_are_not_enforced() -> None:
    schema = {"enum": ["a\0"], "properties": {"b\x01": {}}, "const": "\n\\u0041"}
    assert check(schema).unenforced == (".enum", ".properties")


@pytest.mark.parametrize("number", [-(2**63), -(2**63) + 1, 2**53 + 1, 10**30, 1e300])
def test_numbers_that_doubles_do_not_hold_one_by_one_are_not_enforced(number: float) -> None:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const")
    schema = {**dict.fromkeys(names, number), "enum": [{"a": [number]}], "items": {"multipleOf": abs(number)}}
    assert check(schema).unenforced == (*(f".{name}" for name in names), ".enum", ".items.multipleOf")


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ({"properties": {"a": {"type": "strin"}}}, ".properties.a.type", "malformed"),
        ({"anyOf": [{"minLength": -1}]}, ".anyOf[0].minLength", "malformed"),
        ({"required": "a"}, ".required", "malformed"),
        ({"items": {"$ref": "http://example.com/schema"}}, ".items.$ref", "this schema only"),
        ({"$ref": "#anchor"}, ".$ref", "this schema only"),
        ({"description": "x" * 2000}, "", "bytes"),
        ({"const": [[[[[[[[]]]]]]]]}, "", "deeper than 8"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(schema: dict[str, Any], path: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason) as caught:
        check(schema)
    assert caught.value.path == path
