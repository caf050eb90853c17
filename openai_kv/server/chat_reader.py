"""One choice's text as the contract shows it: reasoning, content and tool calls, whole or in deltas."""

import secrets
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai_kv.parsing.events import Arguments, CallBegun, CallEnded, Content, Event, Reasoning
from openai_kv.parsing.output import Reader
from openai_kv.parsing.reasoning import ThinkReader
from openai_kv.parsing.tool_parser import ToolParser
from openai_kv.request import FinishReason
from openai_kv.server.chat_output import ChatOutput
from openai_kv.server.parts import Part

ALPHABET = string.ascii_letters + string.digits


def call_id(parser: ToolParser) -> str:
    return parser.id_prefix + "".join(secrets.choice(ALPHABET) for _ in range(parser.id_length))


class ChoiceReader:
    """Events of one choice, from its outputs."""

    def __init__(self, output: ChatOutput) -> None:
        self._output = output
        self._thoughts = ThinkReader(output.starts_inside) if output.thinks else None
        self._calls = Reader(output.parser.read, output.choice.names) if output.parser else None
        self._is_over = False
        self.num_calls = 0

    def take(self, text: str, finish_reason: FinishReason | None) -> list[Event]:
        """What `text` adds; with a finish reason, all that was held back too."""
        parts = self._parts(text, is_last=finish_reason is not None)
        if self._calls is None:
            return parts
        found = [event for part in parts for event in self._read(self._calls, part)]
        if finish_reason is not None:
            found += self._calls.finish(is_cut=finish_reason is FinishReason.LENGTH)
        return list(self._up_to_the_last(found))

    def ending(self, part: Part) -> dict[str, Any]:
        """As the contract has it: calls are a reason of their own, but for one that was asked for by name."""
        called = part.finish_reason is FinishReason.STOP and self.num_calls and self._output.choice.mode != "named"
        return {"finish_reason": "tool_calls", "stop_reason": None} if called else part.ending

    def _parts(self, text: str, *, is_last: bool) -> list[Event]:
        """Reasoning told apart from the rest."""
        if self._thoughts is None:
            return [Content(text)] if text else []
        return self._thoughts.feed(text) + (self._thoughts.finish() if is_last else [])

    def _read(self, calls: Reader, part: Event) -> list[Event]:
        return calls.feed(part.text) if isinstance(part, Content) else [part]

    def _up_to_the_last(self, events: Sequence[Event]) -> Iterator[Event]:
        """With `parallel_tool_calls` false nothing comes after the first call."""
        for event in events:
            if self._is_over:
                return
            yield event
            self.num_calls += isinstance(event, CallBegun)
            if isinstance(event, CallEnded):
                self.num_calls -= not event.is_whole
                self._is_over = event.is_whole and self._output.one_call


@dataclass(slots=True)
class Message:
    """The message of a whole answer; a call that broke is content."""

    parser: ToolParser | None
    content: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def take(self, event: Event) -> None:
        match event:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallBegun(name):
                assert self.parser is not None
                function = {"name": name, "arguments": ""}
                self.calls.append({"id": call_id(self.parser), "type": "function", "function": function})
            case Arguments(text):
                self.calls[-1]["function"]["arguments"] += text
            case CallEnded(is_whole=False, markup=markup):
                self.calls.pop()
                self.content += markup
            case _:
                pass

    def to_json(self) -> dict[str, Any]:
        content = None if self.calls and not self.content else self.content
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return {**message, "tool_calls": self.calls} if self.calls else message


class Deltas:
    """The same in pieces, as chunks carry them. `num_read`: characters so far."""

    def __init__(self, output: ChatOutput) -> None:
        self._parser = output.parser
        self._index = -1
        self.num_read = 0
        self.reader = ChoiceReader(output)

    def take(self, text: str, finish_reason: FinishReason | None) -> list[dict[str, Any]]:
        self.num_read += len(text)
        events = self.reader.take(text, finish_reason)
        return [delta for event in events if (delta := self._delta(event))]

    def _delta(self, event: Event) -> dict[str, Any] | None:
        match event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return {"reasoning_content": text}
            case CallBegun(name):
                assert self._parser is not None
                self._index += 1
                head = {"id": call_id(self._parser), "type": "function"}
                return self._call({**head, "function": {"name": name, "arguments": ""}})
            case Arguments(text):
                return self._call({"function": {"arguments": text}})
            case _:
                return None

    def _call(self, part: dict[str, Any]) -> dict[str, Any]:
        return {"tool_calls": [{"index": self._index, **part}]}
