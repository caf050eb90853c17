"""Reads texts in any number of pieces, and what came of it as plain values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from openai_kv.parsing.events import Arguments, CallBegun, CallEnded, Content, Event
from openai_kv.parsing.hermes import HermesParser
from openai_kv.parsing.llama3_json import Llama3JSONParser
from openai_kv.parsing.mistral import MistralParser
from openai_kv.parsing.output import Reader
from openai_kv.parsing.pythonic import PythonicParser
from openai_kv.parsing.tool_parser import ToolParser

PARSERS: dict[str, ToolParser] = {
    parser.name: parser for parser in (HermesParser(), MistralParser(), PythonicParser(), Llama3JSONParser())
}
NAMES = ("get_weather", "add")


@dataclass
class Told:
    """`calls`: name, arguments, and how it ended: None if it did not."""

    content: str = ""
    calls: list[tuple[str, str, bool | None]] = field(default_factory=list)
    markup: str = ""

    def take(self, event: Event) -> None:
        match event:
            case Content(text):
                self.content += text
            case CallBegun(name):
                self.calls.append((name, "", None))
            case Arguments(text):
                name, arguments, _ = self.calls.pop()
                self.calls.append((name, arguments + text, None))
            case CallEnded(is_whole, markup):
                name, arguments, _ = self.calls.pop()
                self.calls.append((name, arguments, is_whole))
                self.markup += markup


def read(parser: ToolParser, pieces: Sequence[str], *, is_cut: bool = False, names: Collection[str] = NAMES) -> Told:
    reader = Reader(parser.read, names)
    told = Told()
    for events in (*map(reader.feed, pieces), reader.finish(is_cut=is_cut)):
        for event in events:
            told.take(event)
    return told
