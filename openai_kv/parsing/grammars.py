"""Grammars of whole outputs: reasoning, then an answer, tool calls, or either of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openai_kv.grammar.lark import ANYTHING, SPACE, Lark, json_of, rules
from openai_kv.parsing.reasoning import CLOSE, OPEN
from openai_kv.parsing.tool_parser import CallSyntax


@dataclass(frozen=True, slots=True)
class OutputGrammar:
    """`thinks`: the model may reason first, and with `starts_inside` is at it already; this part is free."""

    lark: Lark
    thinks: bool = False
    starts_inside: bool = False

    def answer(self, schema: Mapping[str, Any]) -> str:
        """One JSON value."""
        return self._whole("answer", rules(answer=json_of(schema)))

    def calls(self, syntax: CallSyntax, marker: str, *, many: bool) -> str:
        """Nothing but calls, at least one."""
        return self._whole(self._marked(marker), block(syntax, many=many))

    def answer_or_calls(self, schema: Mapping[str, Any], syntax: CallSyntax, marker: str, *, many: bool) -> str:
        answer = rules(answer=json_of(schema))
        return self._whole(f"(answer | {self._marked(marker)})", answer + block(syntax, many=many))

    def text_and_calls(self, syntax: CallSyntax, marker: str, *, many: bool) -> str:
        """Free text; from the marker on, calls. Without `many` the first one is the end."""
        body = "(to_calls calls)* TEXT" if many else "(to_calls calls | TEXT)"
        return self._whole(body, self._up_to("to_calls", marker) + block(syntax, many=many))

    def _marked(self, marker: str) -> str:
        return f"{self.lark.text(marker)} calls" if marker else "calls"

    def _whole(self, body: str, parts: str) -> str:
        begin = "" if self.starts_inside else f"{self.lark.text(OPEN)} "
        optional = "" if self.starts_inside else "?"
        reasoning = rules(reasoning=f"({begin}thoughts {SPACE}){optional}") + self._up_to("thoughts", CLOSE)
        start = f"reasoning {body}" if self.thinks else body
        return rules(start=start, TEXT=ANYTHING) + parts + (reasoning if self.thinks else "")

    def _up_to(self, name: str, marker: str) -> str:
        """A rule for any text that ends with the first such marker."""
        lazy = "" if self.lark.is_special(marker) else "[lazy]"
        return f"{name}{lazy}: TEXT {self.lark.text(marker)}\n"


def block(syntax: CallSyntax, *, many: bool) -> str:
    """The rule `calls`."""
    more = f"({syntax.separator} one_call)*" if many else ""
    return rules(one_call=syntax.call, calls=f"{syntax.opening} one_call {more} {syntax.closing}") + syntax.rules
