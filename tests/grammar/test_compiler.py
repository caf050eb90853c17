import json
import random
from typing import Any

import jsonschema
import pytest

from openai_kv.grammar.schema import SchemaError
from tests.grammar.grammars import COMPILER, accepts, json_answer, of_schema, walk

OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "age": {"type": "integer", "minimum": 3, "maximum": 120},
    },
    "required": ["age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {"node": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}}},
    "$ref": "#/$defs/node",
}
# schema, instances that fit, instances that don't
CASES: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    (OBJECT, [{"age": 3}, {"name": "ab", "age": 120}], [{}, {"age": 121}, {"name": "a", "age": 5}, {"age": 3, "x": 1}]),
    ({"type": ["string", "null"]}, ["", None, "ü\n"], [1, True]),
    ({"type": "object", "additionalProperties": {"type": "boolean"}}, [{}, {"a": True}], [{"a": 1}]),
    ({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "type": "array"}, [[1, "a"]], [["a"]]),
    ({"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 2}, [[1.5], [1, 2]], [[], [1, 2, 3]]),
    ({"enum": ["red", 1, None, {"a": []}]}, ["red", 1, None, {"a": []}], ["blue", 2]),
    ({"enum": [2**53, -(2**53), 0.1]}, [2**53, -(2**53), 0.1], [2**53 - 1, 0.2]),
    ({"type": "integer", "minimum": 2**53 - 1, "maximum": 2**53}, [2**53 - 1, 2**53], [2**53 - 2, 2**53 + 1]),
    ({"const": [1, "x"]}, [[1, "x"]], [[1], [1, "y"]]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}, [5, "ab"], ["abc", 1.5]),
    (TREE, [{"kids": []}, {"kids": [{"kids": []}]}], [{"kids": [1]}]),
    ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}}, [None], [0]),
    ({"type": "string", "pattern": "^[a-c]+$"}, ["abc"], ["abd", ""]),
    ({"type": "string", "pattern": "b", "maxLength": 3}, ["abc", "b"], ["aaa", "abcd"]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, [1, 0.5], [0, 2, -1]),
    ({"type": "integer", "multipleOf": 7}, [0, 14, -7], [1, 13]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2023-12-31"], ["2023-02-29", "1900-02-29", "2023-13-01"]),
    ({"type": "string", "format": "date", "pattern": "^20"}, ["2024-02-29"], ["2023-02-29", "1999-01-01"]),
    ({"type": "string", "format": "date-time"}, ["2023-02-28T23:59:59Z"], ["2023-02-29T00:00:00Z"]),
    ({"type": "string", "format": "time"}, ["08:30:06Z"], ["23:59:60Z", "24:00:00Z"]),
    ({"type": "string", "format": "duration"}, ["P4DT12H"], ["PT1D"]),
    ({"type": "string", "format": "email"}, ["joe@example.com"], ["joe"]),
    ({"type": "string", "format": "hostname"}, ["www.example.com"], ["-a-"]),
    ({"type": "string", "format": "ipv4"}, ["192.168.0.1"], ["256.0.0.1"]),
    ({"type": "string", "format": "ipv6"}, ["::1", "fe80::a"], ["12345::"]),
    ({"type": "string", "format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "fits", "misfits"), CASES, ids=lambda value: str(value)[:40])
def test_exactly_what_fits_can_be_written(schema: dict[str, Any], fits: list[Any], misfits: list[Any]) -> None:
    grammar = of_schema(schema)
    assert [value for value in fits if not accepts(grammar, json.dumps(value, ensure_ascii=False))] == []
    assert [value for value in misfits if accepts(grammar, json.dumps(value, ensure_ascii=False))] == []


@pytest.mark.parametrize(("schema", "fits", "misfits"), CASES, ids=lambda value: str(value)[:40])
def test_whatever_ends_is_valid(schema: dict[str, Any], fits: list[Any], misfits: list[Any]) -> None:
    grammar = of_schema(schema)
    rng = random.Random(0)
    for _ in range(20):
        value = walk(grammar, rng)
        if value is not None or None in fits:
            jsonschema.validate(value, schema)


def test_white_space_between_tokens_is_bounded_and_none_around_them() -> None:
    grammar = of_schema(OBJECT)
    assert accepts(grammar, "{" + " \n" * 10 + '"age"\t: 5}')
    assert not accepts(grammar, "{" + " " * 21 + '"age": 5}')
    assert not accepts(grammar, ' {"age": 5}')
    assert not accepts(grammar, '{"age": 5} ')


def test_a_number_has_at_most_a_hundred_digits_in_a_row() -> None:
    grammar, many = of_schema({"type": ["number", "string", "array"]}), "7" * 100
    for text in (many, f"-{many}.{many}e{many}", f"[{many},{many}]"):
        assert accepts(grammar, text)
    for text in (f"{many}7", f"0.{many}7", f"1e{many}7", f"[{many}7]"):
        assert not accepts(grammar, text)
    assert accepts(grammar, f'"{many}7"'), "in a text digits are letters"


@pytest.mark.parametrize("schema", [{"enum": ["7" * 200]}, {"pattern": "^7{200}$"}], ids=str)
def test_digits_that_a_schema_asks_for_are_written(schema: dict[str, Any]) -> None:
    assert accepts(of_schema(schema), json.dumps("7" * 200))


def test_keys_come_in_the_order_of_properties() -> None:
    grammar = of_schema({"type": "object", "properties": {"b": {}, "a": {}}})
    assert accepts(grammar, '{"b":1,"a":2,"z":3}')
    assert not accepts(grammar, '{"a":2,"b":1}')


def test_a_thousand_optional_properties_can_be_followed() -> None:
    properties = {f"p{number}": {"type": "integer"} for number in range(1000)}
    assert accepts(of_schema({"type": "object", "properties": properties}), '{"p7":1,"p999":2}')


def test_no_key_is_written_in_another_spelling() -> None:
    grammar = of_schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert not accepts(grammar, r'{"\u0061":"text"}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"$ref": "#/$defs/missing"},
    ],
    ids=["contradictory", "unresolved"],
)
def test_what_has_no_grammar_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        COMPILER.compile(json_answer(schema))


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}}])
def test_a_reference_that_leads_only_to_itself_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="nothing can be written"):
        of_schema(schema)


def test_a_grammar_is_compiled_once() -> None:
    grammar = json_answer({"const": "once"})
    assert COMPILER.compile(grammar) is COMPILER.compile(grammar)
    assert COMPILER.compile.cache_info().maxsize == 256
