"""Items of a response as chat messages, and what has been said so far."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_kv.server.fields import Mark
from openai_kv.server.messages import parsed_arguments

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Chat messages, as templates take them, and the breakpoints in them. Instructions are no part of it."""

    messages: tuple[Mapping[str, Any], ...] = ()
    marks: tuple[Mark, ...] = ()

    def with_items(self, items: str | Sequence[Item], path: str = "") -> "Conversation":
        """`path` is where the items are in the body. A text is a message of the user."""
        writer = Writer(self)
        if isinstance(items, str):
            items = [{"type": "message", "role": "user", "content": items}]
        for index, item in enumerate(items):
            writer.add(item, f"{path}[{index}]")
        return Conversation(tuple(writer.messages), tuple(writer.marks))

    def with_instructions(self, text: str) -> "Conversation":
        marks = (Mark(mark.path, mark.message + 1, mark.end, mark.ttl) for mark in self.marks)
        return Conversation(({"role": "system", "content": text}, *self.messages), tuple(marks))

    def without_oldest(self, count: int) -> "Conversation":
        """Without the first `count` messages."""
        kept = (mark for mark in self.marks if mark.message >= count)
        marks = (Mark(mark.path, mark.message - count, mark.end, mark.ttl) for mark in kept)
        return Conversation(self.messages[count:], tuple(marks))

    @property
    def turns(self) -> list[int]:
        """Where each message of the user is: a conversation may begin there."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "user"]


class Writer:
    """Adds to a conversation. What the assistant does without an answer in between becomes one message."""

    def __init__(self, before: Conversation) -> None:
        self.messages: list[Mapping[str, Any]] = [*before.messages]
        self.marks = [*before.marks]
        self._last: dict[str, Any] = {}  # the message that was begun last

    def add(self, item: Item, path: str) -> None:
        match item["type"]:
            case "reasoning":
                self._reason(item)
            case "function_call":
                self._call(item)
            case "function_call_output":
                self._begin("tool", tool_call_id=item["call_id"])
                self._say(item["output"], f"{path}.output")
            case _:
                self._speak(item, f"{path}.content")

    def _speak(self, item: Item, path: str) -> None:
        role = "system" if item["role"] == "developer" else item["role"]
        if not (role == "assistant" and self._is_in_turn and self._can_go_on):
            self._begin(role)
        self._say(item["content"], path)

    @property
    def _is_in_turn(self) -> bool:
        return self._last.get("role") == "assistant"

    @property
    def _can_go_on(self) -> bool:
        """Text after text is another message."""
        return "tool_calls" in self._last or not self._last["content"]

    def _reason(self, item: Item) -> None:
        texts = [part["text"] for part in item.get("content") or item.get("summary") or []]
        if texts:
            self._begin("assistant", reasoning_content="\n".join(texts))

    def _call(self, item: Item) -> None:
        if not self._is_in_turn:
            self._begin("assistant")
        function = {"name": item["name"], "arguments": parsed_arguments(item["arguments"])}
        call = {"id": item["call_id"], "type": "function", "function": function}
        self._last.setdefault("tool_calls", []).append(call)

    def _begin(self, role: str, **fields: str) -> None:
        self._last = {"role": role, "content": "", **fields}
        self.messages.append(self._last)

    def _say(self, content: str | Iterable[Item], path: str) -> None:
        """Parts are lines; where a breakpoint comes to lie is noted."""
        parts = [{"text": content}] if isinstance(content, str) else content
        for index, part in enumerate(parts):
            text = part.get("text", part.get("refusal", ""))
            self._last["content"] += ("\n" if index else "") + text
            if mark := part.get("prompt_cache_breakpoint"):
                place = len(self.messages) - 1, len(self._last["content"])
                self.marks.append(Mark(f"{path}[{index}]", *place, mark.get("ttl")))
