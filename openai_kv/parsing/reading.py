"""What readers are made of. All are generators to be used with `yield from`; none returns at the end of the text."""

import json
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NoReturn

from openai_kv.parsing.output import EndOfText, Output

Taken = Generator[None, str, str]
Found = Generator[None, str, bool]
HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{')
OPENING, CLOSING = "([{", ")]}"


@dataclass(slots=True)
class Nesting:
    """How deep in brackets a growing text is; those in quotes don't count."""

    quotes: str = '"'
    depth: int = 0
    _quote: str = field(default="", init=False)
    _is_escaped: bool = field(default=False, init=False)

    @property
    def is_outside(self) -> bool:
        return self.depth == 0 and not self._quote

    def take(self, char: str) -> None:
        if self._quote:
            self._in_quotes(char)
        elif char in self.quotes:
            self._quote = char
        else:
            self.depth += (char in OPENING) - (char in CLOSING)

    def _in_quotes(self, char: str) -> None:
        if char == self._quote and not self._is_escaped:
            self._quote = ""
        self._is_escaped = char == "\\" and not self._is_escaped


def visible() -> Taken:
    """The next character that is no white space."""
    while (char := (yield)).isspace():
        pass
    return char


def until(output: Output, marker: str) -> Generator[None, str, None]:
    """Content up to the marker, with which markup begins."""
    held = ""
    try:
        while held != marker:
            held += yield
            shown = next(at for at in range(len(held) + 1) if marker.startswith(held[at:]))
            output.content(held[:shown])
            held = held[shown:]
    except EndOfText:
        output.content(held)
        raise
    output.begin_markup(held)


def rest(output: Output) -> Generator[None, str, NoReturn]:
    """All else is content."""
    while True:
        output.content((yield))


def closing(output: Output, tag: str) -> Generator[None, str, None]:
    """The tag, perhaps after white space; anything else is read again."""
    read = ""
    while read.lstrip() != tag:
        read += yield
        if not tag.startswith(read.lstrip()):
            output.push_back(read)
            return


def read_object(output: Output) -> Found:
    """The arguments of the call that has begun; False: they are no JSON object."""
    char = yield from visible()
    nesting, text = Nesting(), ""
    while char == "{" or text:
        nesting.take(char)
        text += char
        output.arguments(char)
        if nesting.is_outside:
            return is_object(text)
        char = yield
    return False


def read_call(output: Output) -> Found:
    """`{"name": ..., "arguments": {...}}` as a call, its arguments as they come; False: it is none, or may not be made.

    Keys in another order are fine, but then the call is told only when it is complete. `parameters` is `arguments`.
    """
    text = yield from visible()
    nesting = Nesting()
    nesting.take(text)
    while text[0] == "{":
        char = yield
        nesting.take(char)
        text += char
        if output.is_in_call and (nesting.depth > 1 or (char == "}" and nesting.depth == 1)):
            output.arguments(char)
        elif char == "{" and (head := HEAD.fullmatch(text)):
            if not output.begin_call(head[1]):
                return False
            output.arguments(char)
        if nesting.is_outside:
            return end_call(output, text)
    return False


def end_call(output: Output, text: str) -> bool:
    """The call is there as a whole: tell what has not been told yet."""
    call = parsed(text)
    if not isinstance(call, dict):
        return False
    arguments = call.get("arguments", call.get("parameters"))
    if not output.is_in_call:
        if not isinstance(arguments, dict) or not output.begin_call(str(call.get("name"))):
            return False
        output.arguments(json.dumps(arguments, ensure_ascii=False))
    output.end_call()
    return True


def is_object(text: str) -> bool:
    return isinstance(parsed(text), dict)


def parsed(text: str) -> Any:
    """None if it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def read_list(output: Output, read_one: Callable[[Output], Found]) -> Found:
    """Calls that `read_one` reads, between commas, up to the bracket that closes the list. The opening one is read."""
    while (yield from read_one(output)):
        output.begin_markup()
        char = yield from visible()
        if char == "]":
            output.end_markup()
            return True
        if char != ",":
            return False
    return False
