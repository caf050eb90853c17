"""`[f(a=1), g(b="x")]`: Llama 3.2 and 4, and others that were taught on Python."""

import ast
import json
import re
from collections.abc import Generator, Sequence
from typing import Any

from openai_kv.grammar.lark import Lark
from openai_kv.parsing.output import Output, Reading
from openai_kv.parsing.python_syntax import keyword_rules
from openai_kv.parsing.reading import Nesting, parsed, read_list, rest, visible
from openai_kv.parsing.tool_parser import CallSyntax, Tool, ToolParser

NAME = re.compile(r"[A-Za-z0-9_-]{0,64}")


class PythonicParser(ToolParser):
    name = "pythonic"
    template_marks = ("func_name1(",)

    def read(self, output: Output) -> Reading:
        output.begin_markup()
        if not ((yield from visible()) == "[" and (yield from read_list(output, self.read_call))):
            output.reject()
        yield from rest(output)

    def read_call(self, output: Output) -> Generator[None, str, bool]:
        if not output.begin_call((yield from word("("))):
            return False
        begin = "{"
        char = yield from visible()
        while char != ")":
            name = char + (yield from word("="))
            text, char = yield from value()
            as_json = to_json(text)
            if not name.isidentifier() or as_json is None:
                return False
            output.arguments(f"{begin}{json.dumps(name)}: {as_json}")
            begin = ", "
            if char == ",":
                char = yield from visible()
        output.arguments("{}" if begin == "{" else "}")
        output.end_call()
        return True

    def syntax(self, tools: Sequence[Tool], lark: Lark) -> CallSyntax | None:
        if not all(name.isidentifier() for tool in tools for name in tool.parameters.get("properties", {})):
            return None
        calls = [f'"{tool.name}(" keywords_{index} ")"' for index, tool in enumerate(tools)]
        rules = "".join(keyword_rules(index, tool.parameters) for index, tool in enumerate(tools))
        return CallSyntax("(" + " | ".join(calls) + ")", lark.text("["), lark.text(", "), lark.text("]"), rules)


def word(end: str) -> Generator[None, str, str]:
    """A name up to the character `end`; white space around it is nothing. Something else: ""."""
    text = ""
    while (char := (yield)) != end:
        text += char
        if not NAME.fullmatch(text.strip()):
            return ""
    return text.strip()


def value() -> Generator[None, str, tuple[str, str]]:
    """The text of one argument, and the comma or bracket that ended it."""
    nesting, text = Nesting("\"'"), ""
    while True:
        char = yield
        if nesting.is_outside and char in ",)":
            return text, char
        nesting.take(char)
        text += char


def to_json(text: str) -> str | None:
    """A Python or JSON literal as JSON; None if it is neither."""
    try:
        return json.dumps(literal(text.strip()), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def literal(text: str) -> Any:
    found = parsed(text)
    return ast.literal_eval(text) if found is None and text != "null" else found
