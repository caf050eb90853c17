"""What a model said, read into items."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from openai_kv.parsing.events import Arguments, CallBegun, CallEnded, Content, Event, Reasoning
from openai_kv.server.responses.output_items import (
    MESSAGE,
    REASONING,
    CallItem,
    OutputItem,
    Payload,
    Shape,
    TextItem,
)


@dataclass(frozen=True, slots=True)
class Told:
    """An event, and the log probabilities of the tokens that made it."""

    event: Event
    logprobs: Sequence[Payload] = ()


class Output:
    """Each step gives the stream events that tell of it: go through them, also when nobody streams."""

    def __init__(self, new_call_id: Callable[[], str]) -> None:
        self._new_call_id = new_call_id
        self._items: list[OutputItem] = []

    def to_json(self) -> list[Payload]:
        return [item.to_json() for item in self._items]

    def take(self, told: Told) -> Iterator[Payload]:
        match told.event:
            case Content(text):
                yield from self._say(MESSAGE, text, told.logprobs)
            case Reasoning(text):
                yield from self._say(REASONING, text, ())
            case CallBegun(name):
                yield from self._begin(CallItem(len(self._items), self._new_call_id(), name))
            case Arguments(text):
                call = self._items[-1]
                assert isinstance(call, CallItem)
                yield from call.say(text)
            case CallEnded(is_whole=is_whole):
                yield from self.end("completed" if is_whole else "incomplete")

    def finish(self, status: str) -> Iterator[Payload]:
        """Nothing more comes: what is open ends with `status`. An answer of nothing is a message without text."""
        if not self._items:
            yield from self._begin(TextItem(0, MESSAGE))
        yield from self.end(status)

    def _say(self, shape: Shape, text: str, logprobs: Sequence[Payload]) -> Iterator[Payload]:
        last = self._items[-1] if self._items else None
        if not (isinstance(last, TextItem) and last.shape is shape and last.status == "in_progress"):
            last = TextItem(len(self._items), shape)
            yield from self._begin(last)
        yield from last.say(text, logprobs)

    def _begin(self, item: OutputItem) -> Iterator[Payload]:
        yield from self.end("completed")
        self._items.append(item)
        yield from item.begin()

    def end(self, status: str) -> Iterator[Payload]:
        """Of what is open."""
        if self._items and self._items[-1].status == "in_progress":
            yield from self._items[-1].end(status)


def settled(events: Iterable[Told]) -> Iterator[Told]:
    """Of a whole answer: a call that did not parse is content."""
    call: list[Told] = []
    for told in events:
        if not (call or isinstance(told.event, CallBegun)):
            yield told
            continue
        call.append(told)
        if isinstance(told.event, CallEnded):
            yield from call if told.event.is_whole else [Told(Content(told.event.markup))]
            call = []
    yield from call
