"""Reasoning between `<think>` and `</think>`, told apart from the rest."""

from dataclasses import dataclass, field

from openai_kv.parsing.events import Content, Event, Reasoning

OPEN, CLOSE = "<think>", "</think>"


@dataclass(slots=True)
class ThinkReader:
    """Reads one text, piece by piece; markers and the white space next to them are dropped.

    `is_inside`: the prompt ended after an opening marker. A section that is never closed is all reasoning.
    """

    is_inside: bool = False
    _held: str = field(default="", init=False)
    _skips_space: bool = field(default=False, init=False)
    _found: list[Event] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._skips_space = self.is_inside

    @property
    def holds_marker(self) -> bool:
        """The text ends with what may be the beginning of a marker."""
        return bool(self._held.strip())

    def feed(self, text: str) -> list[Event]:
        for char in text:
            self._take(char)
        found, self._found = self._found, []
        return found

    def finish(self) -> list[Event]:
        self._tell(self._held)
        self._held = ""
        return self.feed("")

    def _take(self, char: str) -> None:
        if self._skips_space and char.isspace():
            return
        self._skips_space = False
        marker = CLOSE if self.is_inside else OPEN
        self._held += char
        shown = next(at for at in range(len(self._held) + 1) if marker.startswith(self._held[at:].lstrip()))
        self._tell(self._held[:shown])
        self._held = self._held[shown:]
        if self._held.lstrip() == marker:
            self.is_inside, self._skips_space, self._held = not self.is_inside, True, ""

    def _tell(self, text: str) -> None:
        kind = Reasoning if self.is_inside else Content
        last = self._found[-1] if self._found else None
        if isinstance(last, kind):
            self._found[-1] = kind(last.text + text)
        elif text:
            self._found.append(kind(text))
