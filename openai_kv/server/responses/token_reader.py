"""A choice read token by token where log probabilities are told, so that each goes with its text."""

from collections.abc import Callable, Iterator, Sequence

from openai_kv.parsing.events import Content, Event
from openai_kv.request import FinishReason, TokenLogprobs
from openai_kv.server.chat_reader import ChoiceReader
from openai_kv.server.parts import Part
from openai_kv.server.responses.output import Told
from openai_kv.server.responses.output_items import Payload

Piece = tuple[str, list[TokenLogprobs]]


class TokenReader:
    """`write` gives entries the form of an answer. Those of reasoning, of markup and of the end are dropped."""

    def __init__(self, reader: ChoiceReader, write: Callable[[Sequence[TokenLogprobs]], list[Payload]]) -> None:
        self._reader = reader
        self._write = write
        self._num_read = 0
        self._unsaid: list[Piece] = []

    def take(self, part: Part) -> Iterator[Told]:
        pieces = whole_characters(part.take_tokens(self._num_read), part.finish_reason)
        for number, (text, entries) in enumerate(pieces, 1):
            self._num_read += len(text)
            self._unsaid += [(text, entries)] if text and entries else []
            for event in self._reader.take(text, part.finish_reason if number == len(pieces) else None):
                yield Told(event, self._entries(event))
                self._unsaid = []

    def _entries(self, event: Event) -> list[Payload]:
        """Of the latest tokens that make up the text: before them may be markup, after it white space that waits."""
        if not (self._unsaid and isinstance(event, Content)):
            return []
        wanted, text, found = event.text.rstrip() or event.text, "", list[TokenLogprobs]()
        while self._unsaid and not text.endswith(wanted) and not text.rstrip().endswith(wanted):
            piece, entries = self._unsaid.pop()
            text, found = piece + text, entries + found
        return self._write(found)


def whole_characters(pieces: Sequence[Piece], finish_reason: FinishReason | None) -> list[Piece]:
    """With the text of a character that several tokens make in one piece; a token that ends the text stays alone."""
    ends = len(pieces) - 1 if finish_reason is FinishReason.STOP else len(pieces)
    found: list[Piece] = []
    for number, (text, entries) in enumerate(pieces):
        if text or not found or number == ends:
            found.append((text, entries))
        else:
            found[-1] = (found[-1][0], found[-1][1] + entries)
    return found
