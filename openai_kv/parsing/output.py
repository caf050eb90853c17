"""Where a reader puts what it finds, and how it gets its characters.

A reader is a generator: `char = yield` is the next character of the text. So however the text is cut into pieces, the
reader sees the same, and its code reads like one that has all of the text before it.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Collection, Generator

from openai_kv.parsing.events import Arguments, CallBegun, CallEnded, Content, Event

Reading = Generator[None, str, None]


class EndOfText(Exception):
    """Raised in a reader, where it waits for a character, when there is none left."""


class Output:
    """What was found in one text so far. Content is trimmed; markup that turns out to be none becomes content."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._events: list[Event] = []
        self._pending = ""
        self._spaces: str | None = None
        self._markup: str | None = None
        self.is_in_call = False
        self.unread: deque[str] = deque()

    def saw(self, char: str) -> None:
        if self._markup is not None:
            self._markup += char

    def push_back(self, text: str) -> None:
        """Read `text` again, before anything else."""
        self.unread.extendleft(reversed(text))

    def content(self, text: str) -> None:
        self._pending += text

    def begin_markup(self, read: str = "") -> None:
        """From here on it is markup, `read` included; `reject` makes it content again."""
        self._markup = read

    def end_markup(self) -> None:
        self._markup = None

    def reject(self) -> None:
        """The markup is none, or does not parse: it is content."""
        markup, self._markup = self._markup or "", None
        if self.is_in_call:
            self._add(CallEnded(is_whole=False, markup=markup))
        else:
            self.content(markup)
        self.is_in_call = False

    def begin_call(self, name: str) -> bool:
        """False: no function of this name may be called."""
        self.is_in_call = name in self._names
        if self.is_in_call:
            self._add(CallBegun(name))
        return self.is_in_call

    def arguments(self, text: str) -> None:
        """More JSON text of the arguments."""
        last = self._events[-1] if self._events else None
        if isinstance(last, Arguments):
            self._events[-1] = Arguments(last.text + text)
        else:
            self._add(Arguments(text))

    def end_call(self) -> None:
        """The call is complete, and its markup is over."""
        self._add(CallEnded(is_whole=True))
        self.is_in_call = False
        self._markup = None

    def take(self) -> list[Event]:
        """What was found since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _add(self, event: Event) -> None:
        self._flush()
        self._events.append(event)

    def _flush(self) -> None:
        """White space waits for what follows it, and is nothing before the first word."""
        text, self._pending = self._pending, ""
        if not text.strip():
            self._spaces = None if self._spaces is None else self._spaces + text
            return
        text = text.lstrip() if self._spaces is None else self._spaces + text
        shown = text.rstrip()
        self._spaces = text[len(shown) :]
        self._events.append(Content(shown))


class Reader:
    """Reads one text, piece by piece. `names`: the functions that may be called."""

    def __init__(self, read: Callable[[Output], Reading], names: Collection[str]) -> None:
        self._output = Output(names)
        self._reading = read(self._output)
        next(self._reading)

    def feed(self, text: str) -> list[Event]:
        """What there is to tell after `text`."""
        output = self._output
        output.push_back(text)
        while output.unread:
            char = output.unread.popleft()
            output.saw(char)
            self._reading.send(char)
        return output.take()

    def finish(self, *, is_cut: bool) -> list[Event]:
        """The rest. A call that is open stays one, as far as it came, if the text was cut; else it does not parse."""
        with contextlib.suppress(EndOfText):
            self._reading.throw(EndOfText)
        if not (is_cut and self._output.is_in_call):
            self._output.reject()
        return self._output.take()
