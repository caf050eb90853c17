"""Items of an output, as they are built up and as stream events tell of them."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Payload = dict[str, Any]


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


class OutputItem(Protocol):
    """The events of its begin and end, its JSON as far as it came; `status` is in_progress until it has ended."""

    status: str

    def to_json(self) -> Payload: ...
    def begin(self) -> Iterator[Payload]: ...
    def end(self, status: str) -> Iterator[Payload]: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """An item with one part of text. `part` is also what its events are called; `extras` are lists in the part."""

    prefix: str
    fields: Mapping[str, Any]
    part: str
    extras: tuple[str, ...] = ()


MESSAGE = Shape("msg", {"type": "message", "role": "assistant"}, "output_text", ("annotations", "logprobs"))
REASONING = Shape("rs", {"type": "reasoning", "summary": []}, "reasoning_text")


@dataclass(slots=True)
class TextItem:
    index: int
    shape: Shape
    id: str = field(init=False)
    status: str = "in_progress"
    text: str = ""
    logprobs: list[Payload] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.id = new_id(self.shape.prefix)

    def to_json(self) -> Payload:
        return self._item([self.part()])

    def part(self) -> Payload:
        extras: Payload = {name: [] for name in self.shape.extras}
        return {"type": self.shape.part, "text": self.text, **extras, **self._told(self.logprobs)}

    def begin(self) -> Iterator[Payload]:
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self._item([])}
        yield self._tell("content_part.added", part=self.part())

    def say(self, text: str, logprobs: Sequence[Payload]) -> Iterator[Payload]:
        self.text += text
        self.logprobs += logprobs
        yield self._tell(f"{self.shape.part}.delta", delta=text, **self._told(logprobs))

    def end(self, status: str) -> Iterator[Payload]:
        self.status = status
        yield self._tell(f"{self.shape.part}.done", text=self.text, **self._told(self.logprobs))
        yield self._tell("content_part.done", part=self.part())
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.to_json()}

    def _item(self, content: list[Payload]) -> Payload:
        return {"id": self.id, "status": self.status, **self.shape.fields, "content": content}

    def _told(self, logprobs: Sequence[Payload]) -> Payload:
        return {"logprobs": [*logprobs]} if "logprobs" in self.shape.extras else {}

    def _tell(self, kind: str, **fields: Any) -> Payload:
        place = {"item_id": self.id, "output_index": self.index, "content_index": 0}
        return {"type": f"response.{kind}", **place, **fields}


@dataclass(slots=True)
class CallItem:
    index: int
    call_id: str
    name: str
    id: str = field(default_factory=lambda: new_id("fc"))
    status: str = "in_progress"
    arguments: str = ""

    def to_json(self) -> Payload:
        frame = {"id": self.id, "status": self.status, "type": "function_call"}
        return {**frame, "call_id": self.call_id, "name": self.name, "arguments": self.arguments}

    def begin(self) -> Iterator[Payload]:
        yield {"type": "response.output_item.added", "output_index": self.index, "item": self.to_json()}

    def say(self, text: str) -> Iterator[Payload]:
        self.arguments += text
        yield self._tell("delta", delta=text)

    def end(self, status: str) -> Iterator[Payload]:
        self.status = status
        yield self._tell("done", name=self.name, arguments=self.arguments)
        yield {"type": "response.output_item.done", "output_index": self.index, "item": self.to_json()}

    def _tell(self, kind: str, **fields: Any) -> Payload:
        place = {"item_id": self.id, "output_index": self.index}
        return {"type": f"response.function_call_arguments.{kind}", **place, **fields}
