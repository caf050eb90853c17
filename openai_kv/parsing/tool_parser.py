"""The contract of tool parsers: one family's way to write tool calls, read and, for grammars, written down."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from openai_kv.grammar.lark import Lark
from openai_kv.parsing.output import Output, Reading


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called; `parameters`: the JSON schema that a grammar has to hold its arguments to."""

    name: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Calls are `opening call (separator call)* closing` after the start marker, each a Lark expression or "".

    `call` is any one of the tools; `rules` are further rules they refer to, `name: body` lines.
    """

    call: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    rules: str = ""


class ToolParser(ABC):
    """One object a server; it keeps nothing of any request."""

    name: ClassVar[str]
    template_marks: ClassVar[tuple[str, ...]] = ()  # `auto` takes the parser whose mark the chat template holds
    start_marker: ClassVar[str] = ""  # what calls begin with, always; "": nothing does
    markers: ClassVar[tuple[str, ...]] = ()  # texts that may be special tokens, and are needed to read calls
    id_prefix: ClassVar[str] = "call_"
    id_length: ClassVar[int] = 24

    @abstractmethod
    def read(self, output: Output) -> Reading:
        """Tell `output` what is in a text whose characters come by `char = yield`; never returns."""

    @abstractmethod
    def syntax(self, tools: Sequence[Tool], lark: Lark) -> CallSyntax | None:
        """How calls of `tools` are written, so that they can be enforced; None: they can't."""
