"""What each family may write when calls are asked for, and that its own parser reads just that."""

import json
import random
from typing import Any

import jsonschema
import pytest

from openai_kv.grammar.lark import Lark
from openai_kv.parsing.grammars import OutputGrammar
from openai_kv.parsing.tool_parser import Tool
from tests.grammar.grammars import COMPILER, EOS, TOKENIZER, accepts, allowed_ids, make_compiler, pick
from tests.parsing.texts import PARSERS, read
from tests.tiny_tokenizer import tiny_tokenizer

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
        "place": {"$ref": "#/$defs/place"},
    },
    "$defs": {"place": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
    "required": ["unit"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "add": NOTHING}
TOOLS = [Tool(name, schema) for name, schema in SCHEMAS.items()]
LARK = Lark({})
ANSWER = {"type": "object", "properties": {"name": {}, "ok": {"type": "boolean"}}, "required": ["ok"]}
# parser, one call, two calls
WRITTEN = [
    (
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"unit": "C"}}\n</tool_call>',
        '<tool_call>{"name": "add", "arguments": {}}</tool_call>\n'
        '<tool_call>{"name": "add", "arguments": {}}</tool_call>',
    ),
    (
        "mistral",
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"days": 2, "unit": "F"}}]',
        '[TOOL_CALLS] [{"name": "add", "arguments": {}}, {"name": "add", "arguments": {}}]',
    ),
    (
        "llama3_json",
        '{"name": "get_weather", "parameters": {"unit": "F"}}',
        '{"name": "add", "parameters": {}}; {"name": "add", "parameters": {}}',
    ),
    ("pythonic", '[get_weather(days=3, unit="C", place=[true])]', "[add(), add()]"),
]
NAMES = [name for name, *_ in WRITTEN]


def calls_grammar(name: str, *, many: bool = True, grammar: OutputGrammar | None = None) -> str:
    parser = PARSERS[name]
    syntax = parser.syntax(TOOLS, LARK)
    assert syntax is not None
    return (grammar or OutputGrammar(LARK)).calls(syntax, parser.start_marker, many=many)


def text_grammar(name: str, *, many: bool = True) -> str:
    syntax = PARSERS[name].syntax(TOOLS, LARK)
    assert syntax is not None
    return OutputGrammar(LARK).text_and_calls(syntax, PARSERS[name].start_marker, many=many)


@pytest.mark.parametrize(("name", "one", "two"), WRITTEN)
def test_calls_that_may_be_written(name: str, one: str, two: str) -> None:
    grammar = COMPILER.compile(calls_grammar(name))
    assert accepts(grammar, one)
    assert accepts(grammar, two)
    assert not accepts(grammar, "Let me see. " + one)
    assert not accepts(grammar, one.replace("unit", "size"))
    assert not accepts(grammar, two.replace("add", "rm"))
    single = COMPILER.compile(calls_grammar(name, many=False))
    assert accepts(single, one)
    assert not accepts(single, two)
    assert [is_whole for _, _, is_whole in read(PARSERS[name], [two]).calls] == [True, True]


@pytest.mark.parametrize("name", NAMES)
def test_whatever_is_written_is_read_as_calls_that_satisfy_their_schemas(name: str) -> None:
    grammar = COMPILER.compile(calls_grammar(name))
    rng = random.Random(0)
    ended = 0
    for _ in range(20):
        constraint, token_ids = grammar.start(), list[int]()
        while not constraint.finished and len(token_ids) < 400:
            token_ids.append(pick(allowed_ids(constraint.mask()), rng))
            constraint.advance(token_ids[-1])
        told = read(PARSERS[name], [TOKENIZER.decode([token for token in token_ids if token != EOS])])
        if constraint.finished:
            ended += 1
            assert told.content == "" and told.calls
            for called, arguments, is_whole in told.calls:
                assert is_whole
                jsonschema.validate(json.loads(arguments), SCHEMAS[called])
    assert ended > 10


@pytest.mark.parametrize("name", ["hermes", "mistral"])
def test_in_free_text_only_what_follows_the_marker_is_bound(name: str) -> None:
    _, one, two = next(case for case in WRITTEN if case[0] == name)
    grammar = COMPILER.compile(text_grammar(name))
    for text in ("", "Hello [TOOL_ <tool_ x", one, "Well. " + one, one + " Done.", two + one):
        assert accepts(grammar, text), text
    assert not accepts(grammar, one.replace("unit", "size"))
    assert not accepts(grammar, "Well. " + one.replace('"C"', "1").replace('"F"', "1"))
    single = COMPILER.compile(text_grammar(name, many=False))
    assert accepts(single, "Well. " + one)
    assert accepts(single, "Well.")
    assert not accepts(single, one + " Done.")


@pytest.mark.parametrize(("name", "one", "two"), WRITTEN)
def test_an_answer_or_calls(name: str, one: str, two: str) -> None:
    syntax = PARSERS[name].syntax(TOOLS, LARK)
    assert syntax is not None
    marker = PARSERS[name].start_marker
    grammar = COMPILER.compile(OutputGrammar(LARK).answer_or_calls(ANSWER, syntax, marker, many=True))
    for text in ('{"ok": true}', '{"name": "ad", "ok": true}', one, two):
        assert accepts(grammar, text)
    for text in ("hello", '{"ok": 1}', '{"ok": true}' + one, one + '{"ok": true}'):
        assert not accepts(grammar, text)


def test_reasoning_comes_first_and_is_free() -> None:
    grammar = COMPILER.compile(OutputGrammar(LARK, thinks=True).answer(ANSWER))
    for text in ('{"ok": true}', '<think>\nhm {"a </thin </think>\n\n{"ok": false}'):
        assert accepts(grammar, text)
    for text in ('hm {"ok": true}', "<think>hm", '<think>hm</think>{"ok": 1}', '<think>hm</think> yes {"ok": true}'):
        assert not accepts(grammar, text)
    inside = COMPILER.compile(OutputGrammar(LARK, thinks=True, starts_inside=True).answer(ANSWER))
    assert accepts(inside, 'hm</think>{"ok": true}')
    assert not accepts(inside, '{"ok": true}')
    calls = calls_grammar("hermes", grammar=OutputGrammar(LARK, thinks=True))
    assert accepts(COMPILER.compile(calls), "<think>hm</think>\n" + WRITTEN[0][1])


def test_markers_that_are_special_tokens_are_written_as_such() -> None:
    """In the letters of its text a special token could not be written by a model that has it."""
    tokenizer = tiny_tokenizer(specials=["<think>", "</think>", "[TOOL_CALLS]", "[ARGS]"])
    lark, compiler = Lark(tokenizer.special_ids), make_compiler(tokenizer)
    syntax = PARSERS["mistral"].syntax(TOOLS, lark)
    assert syntax is not None
    whole = OutputGrammar(lark, thinks=True)
    text = '<think>hm [TOOL</think>[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]get_weather[ARGS]{"unit": "C"}'
    required = compiler.compile(whole.calls(syntax, "[TOOL_CALLS]", many=True))
    assert accepts(required, text, tokenizer)
    assert not accepts(required, text, tiny_tokenizer())
    free = compiler.compile(whole.text_and_calls(syntax, "[TOOL_CALLS]", many=True))
    assert accepts(free, text, tokenizer)
    assert accepts(free, "Well. [TOOL_CALLS]add[ARGS]{} Done.", tokenizer)
    assert not accepts(free, "Well. [TOOL_CALLS]add[ARGS]{1}", tokenizer)


def test_python_arguments_need_names_that_python_has() -> None:
    tool = Tool("f", {"type": "object", "properties": {"not-a-name": {}}})
    assert PARSERS["pythonic"].syntax([tool], LARK) is None
