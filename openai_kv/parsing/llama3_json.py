"""`{"name", "parameters"}`, several separated by `;`, perhaps after `<|python_tag|>`: Llama 3.1 and later."""

from collections.abc import Generator, Sequence

from openai_kv.grammar.lark import Lark, rules
from openai_kv.parsing.json_syntax import call_rules
from openai_kv.parsing.output import Output, Reading
from openai_kv.parsing.reading import read_call, until, visible
from openai_kv.parsing.tool_parser import CallSyntax, Tool, ToolParser

TAG = "<|python_tag|>"


class Llama3JSONParser(ToolParser):
    name = "llama3_json"
    template_marks = (TAG, "Environment: ipython")
    markers = (TAG,)

    def read(self, output: Output) -> Reading:
        first = yield from visible()
        output.push_back(first)
        if first == "{":
            output.begin_markup()
            yield from self.read_calls(output)
        while True:
            yield from until(output, TAG)
            yield from self.read_calls(output)

    def read_calls(self, output: Output) -> Generator[None, str, None]:
        while (yield from read_call(output)):
            char = yield from visible()
            if char != ";":
                output.push_back(char)
                return
            output.begin_markup()
        output.reject()

    def syntax(self, tools: Sequence[Tool], lark: Lark) -> CallSyntax:
        calls = call_rules(tools, "parameters")
        return CallSyntax("(" + " | ".join(calls) + ")", separator=lark.text("; "), rules=rules(**calls))
