"""The tool parsers that come with the server, in the order in which `auto` asks them."""

from collections.abc import Callable

from openai_kv.hookspecs import hookimpl
from openai_kv.parsing.hermes import HermesParser
from openai_kv.parsing.llama3_json import Llama3JSONParser
from openai_kv.parsing.mistral import MistralParser
from openai_kv.parsing.pythonic import PythonicParser
from openai_kv.parsing.tool_parser import ToolParser

PARSERS = (HermesParser, MistralParser, PythonicParser, Llama3JSONParser)


@hookimpl
def register_tool_parsers(register: Callable[[type[ToolParser]], None]) -> None:
    for parser in PARSERS:
        register(parser)
