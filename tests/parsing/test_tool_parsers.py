"""Each family's markup as models write it, whole, in pieces, cut and broken."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from openai_kv.parsing.events import Arguments
from openai_kv.parsing.output import Reader
from tests.parsing.texts import PARSERS, read

WEATHER = {"city": "Zürich [x] {y}", "days": 2}
ADD = {"a": 1, "b": -2.5}
JSON_WEATHER, JSON_ADD = json.dumps(WEATHER, ensure_ascii=False), json.dumps(ADD)
BOTH = [("get_weather", WEATHER), ("add", ADD)]
# parser, text, content, calls
CASES = [
    ("hermes", f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON_WEATHER}}}\n</tool_call>', "", BOTH[:1]),
    (
        "hermes",
        f' Let me see.\n<tool_call>{{"name":"get_weather","arguments":{JSON_WEATHER}}}</tool_call>\n'
        f'<tool_call>{{"arguments": {JSON_ADD}, "name": "add"}}</tool_call> Done. ',
        "Let me see.\n\n Done.",
        BOTH,
    ),
    (
        "hermes",
        f'<tool_call>{{"name": "get_weather", "arguments": {JSON_WEATHER}}}\n'
        f'<tool_call>{{"name": "add", "parameters": {JSON_ADD}, "id": 7}}',
        "",
        BOTH,
    ),
    ("hermes", '<tool_call>{"name": "add", "arguments": {}}</tool_call>', "", [("add", {})]),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {JSON_WEATHER}}}, '
        f'{{"name": "add", "arguments": {JSON_ADD}}}]',
        "",
        BOTH,
    ),
    ("mistral", f"Well. [TOOL_CALLS]get_weather[ARGS]{JSON_WEATHER}[TOOL_CALLS]add[ARGS] {JSON_ADD}", "Well.", BOTH),
    ("llama3_json", f'{{"name": "get_weather", "parameters": {JSON_WEATHER}}}', "", BOTH[:1]),
    (
        "llama3_json",
        f'<|python_tag|>{{"name": "get_weather", "parameters": {JSON_WEATHER}}}; '
        f'{{"name": "add", "parameters": {JSON_ADD}}}',
        "",
        BOTH,
    ),
    (
        "llama3_json",
        f' {{"name": "get_weather", "parameters": {JSON_WEATHER}}};{{"name": "add", "arguments": {JSON_ADD}}} ok',
        "ok",
        BOTH,
    ),
    ("pythonic", "[get_weather(city='Zürich [x] {y}', days=2), add( a = 1,b=-2.5 )]", "", BOTH),
    ("pythonic", '[get_weather(city="Zürich [x] {y}", days=2)]', "", BOTH[:1]),
    ("pythonic", "[add()]", "", [("add", {})]),
    (
        "pythonic",
        "[add(a=[1, (2, 'x,)')], b={'k': True, 'n': None}, c=true, d=null)]",
        "",
        [("add", {"a": [1, [2, "x,)"]], "b": {"k": True, "n": None}, "c": True, "d": None})],
    ),
]
PLAIN = [
    ("hermes", "Hello <tool_ world"),
    ("hermes", "<tool_call>"),
    ("hermes", "<tool_call>hm</tool_call>"),
    ("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'),
    ("hermes", "<tool_call>[]"),
    ("mistral", "Hi [TOOL_CALL] x"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral", "[TOOL_CALLS] [1]"),
    ("mistral", "[TOOL_CALLS]rm[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]no\nargs"),
    ("llama3_json", "Hello { x"),
    ("llama3_json", "{1: 2}"),
    ("llama3_json", '{"name": "rm", "parameters": {}}'),
    ("llama3_json", '{"name": "add", "parameters": 5}'),
    ("pythonic", "Hello [add(a=1)]"),
    ("pythonic", "[1, 2]"),
    ("pythonic", "[rm(a=1)]"),
    ("pythonic", "[add"),
    ("pythonic", "see [1](http://x)"),
]
# parser, text, what had been told of the call when it broke
BROKEN = [
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": oops}}</tool_call>', '{"a": oops}'),
    ("hermes", '<tool_call>{"name": "add", "arguments": {"a": 1', '{"a": 1'),
    ("mistral", '[TOOL_CALLS]add[ARGS]{"a": }', '{"a": }'),
    ("llama3_json", '{"name": "add", "parameters": {"a": 1} "x"}', '{"a": 1}'),
    ("pythonic", "[add(a=1, b=__import__('os'))]", '{"a": 1'),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_calls_are_read(name: str, text: str, content: str, calls: list[tuple[str, object]]) -> None:
    told = read(PARSERS[name], [text])
    assert [(name, json.loads(arguments), is_whole) for name, arguments, is_whole in told.calls] == [
        (name, arguments, True) for name, arguments in calls
    ]
    assert told.content == content


@pytest.mark.parametrize(("name", "text"), PLAIN)
def test_what_is_no_call_is_content(name: str, text: str) -> None:
    told = read(PARSERS[name], [text])
    assert (told.content, told.calls) == (text, [])


@pytest.mark.parametrize(("name", "text", "told_before"), BROKEN)
def test_a_call_that_breaks_gives_its_markup_back(name: str, text: str, told_before: str) -> None:
    told = read(PARSERS[name], [text])
    assert told.calls == [("add", told_before, False)]
    assert told.markup + told.content == text


def test_a_call_that_is_cut_stays_as_far_as_it_came() -> None:
    told = read(PARSERS["hermes"], ['<tool_call>{"name": "add", "arguments": {"a": 1'], is_cut=True)
    assert (told.calls, told.content) == ([("add", '{"a": 1', None)], "")
    told = read(PARSERS["hermes"], ['<tool_call>{"name": "ad'], is_cut=True)
    assert (told.calls, told.content) == ([], '<tool_call>{"name": "ad')


def test_arguments_come_as_they_are_written() -> None:
    reader = Reader(PARSERS["hermes"].read, ["add"])
    reader.feed('<tool_call>{"name": "add", "arguments": {')
    assert [reader.feed(piece) for piece in ('"a"', ": 1", ', "b": 2}')] == [
        [Arguments('"a"')], [Arguments(": 1")], [Arguments(', "b": 2}')]
    ]  # fmt: skip


TEXTS = [(name, text) for name, text, *_ in CASES] + [(name, text) for name, text, _ in BROKEN]
TEXTS += PLAIN


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 300)), st.booleans())
@example(TEXTS[1], list(range(300)), False)
def test_however_the_text_is_cut_into_pieces_the_calls_are_the_same(
    case: tuple[str, str], cuts: list[int], is_cut: bool
) -> None:
    name, text = case
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[start:end] for start, end in pairwise(edges)]
    assert "".join(pieces) == text
    assert read(PARSERS[name], pieces, is_cut=is_cut) == read(PARSERS[name], [text], is_cut=is_cut)


@given(st.sampled_from(list(PARSERS)), st.text(alphabet="[]{}()<>\"\\,:;= \nnametol_cadd1'|", max_size=60))
def test_no_text_is_lost(name: str, text: str) -> None:
    """Without any function to call, everything is content."""
    assert read(PARSERS[name], [text], names=()).content == text.strip()
