"""Lark for keyword arguments, `a=1, b="x"`: JSON values in the order of `properties`."""

from collections.abc import Mapping
from typing import Any

from openai_kv.grammar.lark import json_of, rules


def keyword_rules(number: int, schema: Mapping[str, Any]) -> str:
    """The rule `keywords_NUMBER`; properties that `required` does not hold may be left out."""
    if "properties" not in schema and schema.get("additionalProperties") is not False:
        return any_keywords(number)
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    required = schema.get("required", [])
    names = list(schema.get("properties", {}))
    bodies = {f"keywords_{number}": f"first_{number}_0"}
    for index, name in enumerate(names):
        inner = schema["properties"][name]
        value = {**shared, **inner} if isinstance(inner, Mapping) else inner
        bodies[f"value_{number}_{index}"] = f'"{name}=" {json_of(value)}'
        bodies |= places(number, index, is_required=name in required)
    end = len(names)
    return rules(**bodies, **{f"first_{number}_{end}": '""', f"next_{number}_{end}": '""'})


def any_keywords(number: int) -> str:
    keyword = f"NAME_{number} {json_of(True)}"
    return rules(**{
        f"NAME_{number}": "/[A-Za-z_][A-Za-z0-9_]*=/",
        f"keyword_{number}": keyword,
        f"keywords_{number}": f'(keyword_{number} (", " keyword_{number})*)?',
    })  # fmt: skip


def places(number: int, index: int, *, is_required: bool) -> dict[str, str]:
    """Where a property may stand: as the first one, or after a comma."""
    here, after = f"{number}_{index}", f"{number}_{index + 1}"
    first, following = f"value_{here} next_{after}", f'", " value_{here} next_{after}'
    if not is_required:
        first, following = f"{first} | first_{after}", f"{following} | next_{after}"
    return {f"first_{here}": first, f"next_{here}": following}
