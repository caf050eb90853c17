"""Tool calls as `<<name {...}>>`, in one file: `openai-kv serve --plugins-dir plugins --tool-parser bracket`."""

from collections.abc import Callable, Sequence

from openai_kv import (
    CallSyntax,
    Lark,
    Output,
    Reading,
    Tool,
    ToolParser,
    hookimpl,
    json_of,
    read_object,
    until,
    visible,
)


class BracketParser(ToolParser):
    """For a model that was taught this form."""

    name = "bracket"
    template_marks = ("<<name",)
    start_marker = "<<"

    def read(self, output: Output) -> Reading:
        while True:
            yield from until(output, "<<")
            name = yield from visible()
            while not name.endswith(" ") and len(name) < 99:
                name += yield
            if output.begin_call(name.strip()) and (yield from read_object(output)):
                output.end_call()
                yield from visible()
                yield from visible()
            else:
                output.reject()

    def syntax(self, tools: Sequence[Tool], lark: Lark) -> CallSyntax:
        calls = [f"{lark.text(tool.name + ' ')} {json_of(tool.parameters)}" for tool in tools]
        return CallSyntax(f"({' | '.join(calls)})", separator=lark.text(">>\n<<"), closing=lark.text(">>"))


@hookimpl
def register_tool_parsers(register: Callable[[type[ToolParser]], None]) -> None:
    register(BracketParser)
