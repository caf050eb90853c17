"""From `response_format` to a grammar; everything slow here runs in worker threads."""

from collections.abc import Mapping
from typing import Any

from openai_kv.errors import ParameterError
from openai_kv.grammar.lark import ANY_OBJECT, Lark
from openai_kv.grammar.schema import SchemaError, SchemaLimits, check_schema
from openai_kv.grammar.subschemas import Schema
from openai_kv.parsing.grammars import OutputGrammar
from openai_kv.request import Grammar
from openai_kv.server.call import Call
from openai_kv.server.violations import clip

PATH = "response_format.json_schema.schema"


def answer_grammar(call: Call, body: Mapping[str, Any]) -> Grammar | None:
    """What `response_format` holds a plain text to, if to anything. Raises ParameterError for a bad schema."""
    schema = answer_schema(call, body)
    return None if schema is None else compile_grammar(call, OutputGrammar(Lark({})).answer(schema), PATH)


def answer_schema(call: Call, body: Mapping[str, Any]) -> Schema | None:
    """What the text of the answer has to satisfy; None: it is free."""
    wanted = body.get("response_format", {"type": "text"})
    if wanted["type"] == "json_schema":
        given = wanted["json_schema"]
        return usable_schema(call, given["schema"], PATH, strict=given.get("strict", False))
    return ANY_OBJECT if wanted["type"] == "json_object" else None


def usable_schema(call: Call, schema: Schema, path: str, *, strict: bool) -> Schema:
    """What of `schema` can be enforced. The rest is a warning, or with `strict` an error."""
    settings = call.context.settings.server
    try:
        checked = check_schema(schema, SchemaLimits(settings.max_schema_bytes, settings.max_schema_depth))
    except SchemaError as error:
        raise invalid_schema(f"{path}{error.path}", error.reason) from None
    if strict and checked.unenforced:
        keyword = path + checked.unenforced[0]
        raise invalid_schema(keyword, f"can't be enforced, which 'strict' asks for ({keyword.rpartition('.')[2]})")
    call.notes.warnings += [f"unenforced_keyword={path}{keyword}" for keyword in checked.unenforced]
    return checked.schema


def compile_grammar(call: Call, grammar: str, path: str) -> Grammar:
    try:
        return call.context.grammars.compile(grammar)
    except SchemaError as error:
        reason = clip(" ".join(error.reason.split()))
        raise invalid_schema(path, f"can't be enforced: {reason}") from None


def invalid_schema(path: str, reason: str) -> ParameterError:
    shown = ".".join(clip(part) for part in path.split("."))
    return ParameterError(f"The schema at '{shown}' {reason}.", param=shown, code="invalid_json_schema")
