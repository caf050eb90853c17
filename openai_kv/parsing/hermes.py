"""`<tool_call>{"name", "arguments"}</tool_call>`: Hermes, Qwen and many others."""

from collections.abc import Sequence

from openai_kv.grammar.lark import SPACE, Lark
from openai_kv.parsing.json_syntax import json_calls
from openai_kv.parsing.output import Output, Reading
from openai_kv.parsing.reading import closing, read_call, until
from openai_kv.parsing.tool_parser import CallSyntax, Tool, ToolParser

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    name = "hermes"
    template_marks = (BEGIN,)
    start_marker = BEGIN
    markers = (BEGIN, END)

    def read(self, output: Output) -> Reading:
        while True:
            yield from until(output, BEGIN)
            if (yield from read_call(output)):
                yield from closing(output, END)
            else:
                output.reject()

    def syntax(self, tools: Sequence[Tool], lark: Lark) -> CallSyntax:
        begin, end = lark.text(BEGIN), lark.text(END)
        call, rules = json_calls(tools, "arguments")
        return CallSyntax(call, SPACE, f"{SPACE} {end} {SPACE} {begin} {SPACE}", f"{SPACE} {end}", rules)
