"""Lark for calls that are JSON objects."""

from collections.abc import Mapping, Sequence
from typing import Any

from openai_kv.grammar.lark import json_of, rules
from openai_kv.parsing.tool_parser import Tool

VALUES = frozenset({"const", "enum"})  # what is in them is no schema


def json_calls(tools: Sequence[Tool], key: str) -> tuple[str, str]:
    """`{"name": "f", KEY: {...}}` of any tool, as templates show it: an expression and its rules."""
    heads = [f'"{{\\"name\\": \\"{tool.name}\\", \\"{key}\\": " args_{index} "}}"' for index, tool in enumerate(tools)]
    return "(" + " | ".join(heads) + ")", argument_rules(tools)


def argument_rules(tools: Sequence[Tool]) -> str:
    """`args_0`, `args_1` ...: the arguments of each."""
    return rules(**{f"args_{index}": json_of(tool.parameters) for index, tool in enumerate(tools)})


def call_rules(tools: Sequence[Tool], key: str) -> dict[str, str]:
    """The same calls as rules `call_0` ..., each a JSON value like any other: for where an answer may stand instead.

    Lexers commit to the longest token: after `{"` one of `json_calls` could not become an answer any more.
    """
    return {f"call_{index}": json_of(call_schema(tool, key)) for index, tool in enumerate(tools)}


def call_schema(tool: Tool, key: str) -> Mapping[str, Any]:
    properties = {"name": {"const": tool.name}, key: moved(tool.parameters, f"#/properties/{key}")}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def moved(schema: Any, place: str) -> Any:
    """The schema as it has to be when it lies at `place` of another one."""
    if isinstance(schema, list):
        return [moved(item, place) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {name: at_place(name, value, place) for name, value in schema.items()}


def at_place(name: str, value: Any, place: str) -> Any:
    if name == "$ref" and isinstance(value, str):
        return place + value.removeprefix("#")
    return value if name in VALUES else moved(value, place)
