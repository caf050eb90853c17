from typing import Any

import pytest

from openai_kv.grammar.cost import counting_states
from openai_kv.grammar.schema import SchemaError, check_schema
from tests.grammar.grammars import LIMITS, of_schema


def chain(length: int, branches: int) -> dict[str, Any]:
    """Definitions that each cross their own alternatives with those of the next one."""
    definitions: dict[str, Any] = {f"d{length}": {"type": "object"}}
    for index in range(length):
        alternatives = [{"properties": {f"x{index}_{branch}": {"type": "integer"}}} for branch in range(branches)]
        definitions[f"d{index}"] = {"anyOf": alternatives, "$ref": f"#/$defs/d{index + 1}"}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def test_alternatives_that_multiply_are_refused() -> None:
    of_schema(chain(2, 3))
    with pytest.raises(SchemaError, match="too many alternatives"):
        of_schema(chain(9, 8))


def test_alternatives_that_add_up_are_not() -> None:
    nullable = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    of_schema({"type": "object", "properties": {f"p{index}": nullable for index in range(60)}, "anyOf": [{}, {}]})


def test_a_circle_is_measured_once() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    of_schema({"$defs": {"node": node}, "$ref": "#/$defs/node"})


def test_numbers_that_would_have_to_be_counted_far_are_not_enforced() -> None:
    schema = {"properties": {name: {"multipleOf": value} for name, value in (("a", 9973), ("b", 9967), ("c", 0.01))}}
    assert check_schema(schema, LIMITS).unenforced == (".properties.b.multipleOf", ".properties.c.multipleOf")


@pytest.mark.parametrize(("multiples", "states"), [([], 1), ([4, 6], 12), ([0.01, 3], 300), ([2.5], 25), ([1e-3], 1)])
def test_states_of_counting(multiples: list[int | float], states: int) -> None:
    assert counting_states(multiples) == states
