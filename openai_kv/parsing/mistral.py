"""`[TOOL_CALLS]` and a JSON list, or `name[ARGS]{...}` as newer models write it."""

from collections.abc import Generator, Sequence

from openai_kv.grammar.lark import SPACE, Lark
from openai_kv.parsing.json_syntax import argument_rules, json_calls
from openai_kv.parsing.output import Output, Reading
from openai_kv.parsing.reading import read_call, read_list, read_object, until, visible
from openai_kv.parsing.tool_parser import CallSyntax, Tool, ToolParser

BEGIN, ARGS = "[TOOL_CALLS]", "[ARGS]"


class MistralParser(ToolParser):
    name = "mistral"
    template_marks = (BEGIN,)
    start_marker = BEGIN
    markers = (BEGIN, ARGS)
    id_prefix = ""
    id_length = 9

    def read(self, output: Output) -> Reading:
        while True:
            yield from until(output, BEGIN)
            char = yield from visible()
            is_read = yield from (read_list(output, read_call) if char == "[" else self.read_named(output, char))
            if not is_read:
                output.reject()

    def read_named(self, output: Output, head: str) -> Generator[None, str, bool]:
        while not head.endswith(ARGS):
            head += yield
            if "\n" in head or len(head) > 99:
                return False
        if not output.begin_call(head.removesuffix(ARGS).strip()):
            return False
        if not (yield from read_object(output)):
            return False
        output.end_call()
        return True

    def syntax(self, tools: Sequence[Tool], lark: Lark) -> CallSyntax:
        if lark.is_special(ARGS):
            begin, args = lark.text(BEGIN), lark.text(ARGS)
            heads = [f"{lark.text(tool.name)} {args} args_{index}" for index, tool in enumerate(tools)]
            return CallSyntax("(" + " | ".join(heads) + ")", separator=begin, rules=argument_rules(tools))
        call, rules = json_calls(tools, "arguments")
        return CallSyntax(call, f'{SPACE} "["', '", "', '"]"', rules)
