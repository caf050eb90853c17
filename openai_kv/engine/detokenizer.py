"""Turns each request's tokens into text that is safe to show, and finds stop strings in it."""

from collections import deque
from dataclasses import dataclass, field

from openai_kv.request import Request
from openai_kv.tokenizer import StreamDecoder, Tokenizer


@dataclass(slots=True)
class StopStrings:
    """Looks for stop strings in a growing text and knows what may be shown of it.

    The earliest match wins, at the same place the longest; a match counts only if it ends after `protected` characters.
    The text ends before the match, with `include` after it.
    """

    stops: tuple[str, ...]
    include: bool = False
    protected: int = 0
    text: str = ""
    shown: int = 0
    matched: str | None = None

    def append(self, piece: str, *, protect: bool = False) -> None:
        """Take more text; with `protect`, a stop string that ends here does not count."""
        assert self.matched is None, "the text has ended"
        self.text += piece
        if not self.stops:
            return
        self.protected = len(self.text) if protect else self.protected
        found = [(at, -len(stop), stop) for stop in self.stops if (at := self._find(stop)) >= 0]
        if found:
            at, _, self.matched = min(found)
            self.text = self.text[:at] + (self.matched if self.include else "")

    def take(self, *, last: bool) -> str:
        """What became safe to show; everything when it is the `last` call or a stop string was found."""
        end = len(self.text) if last or self.matched is not None else len(self.text) - self._held()
        piece = self.text[self.shown : end]
        self.shown = max(self.shown, end)
        return piece

    def _find(self, stop: str) -> int:
        return self.text.find(stop, max(self.shown, self.protected - len(stop) + 1))

    def _held(self) -> int:
        """Length of the longest tail that may be the beginning of a stop string."""
        if not self.stops:
            return 0
        longest = min(max(map(len, self.stops)) - 1, len(self.text) - self.shown)
        tails = (length for length in range(longest, 0, -1) if self._begins_a_stop(length))
        return next(tails, 0)

    def _begins_a_stop(self, length: int) -> bool:
        tail = self.text[-length:]
        return any(stop.startswith(tail) for stop in self.stops)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """New text, and where in the whole text the tokens begin that it (and nothing else any more) is the text of.

    These only for a request that asks for log probabilities.
    """

    text: str
    token_starts: tuple[int, ...]


@dataclass(slots=True)
class _Span:
    start: int
    end: int


@dataclass(slots=True)
class _Output:
    """`spans` are of the tokens that no piece has told of yet; `num_whole` of them have all their text in `text`.

    There are none without `tells_starts`.
    """

    decoder: StreamDecoder
    text: StopStrings
    tells_starts: bool
    spans: deque[_Span] = field(default_factory=deque)
    num_whole: int = 0

    def append(self, token_id: int, *, protect: bool) -> None:
        start = len(self.text.text) + self.decoder.num_held
        self.text.append(self.decoder.step(token_id), protect=protect)
        self._mark(start)

    def close(self, ending: str) -> None:
        """With one more token the text ends, and ends with `ending`, be there a stop string in it or not."""
        start = len(self.text.text) + self.decoder.num_held
        self.text.text += self.decoder.flush() + ending
        self._mark(start)

    def _mark(self, start: int) -> None:
        if not self.tells_starts:
            return
        self.spans.append(_Span(start, start))
        if self.decoder.holds:
            return
        for index in range(self.num_whole, len(self.spans)):
            self.spans[index].end = len(self.text.text)
        self.num_whole = len(self.spans)

    def take(self, *, last: bool) -> TextPiece:
        if last and self.decoder.holds and self.text.matched is None:
            self.text.append(self.decoder.flush())
        text, starts = self.text.take(last=last), list[int]()
        while self.spans and (last or (self.num_whole and self.spans[0].end <= self.text.shown)):
            starts.append(min(self.spans.popleft().start, len(self.text.text)))
            self.num_whole -= 1
        return TextPiece(text, tuple(starts))


class Detokenizer:
    """Text of all running requests, in the engine thread: a stop string ends its request in the step it appears in."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._outputs: dict[str, _Output] = {}

    def add(self, request: Request) -> None:
        params = request.params
        decoder = self._tokenizer.stream_decoder(
            skip_special_tokens=params.skip_special_tokens, visible=params.visible_token_ids
        )
        self._outputs[request.request_id] = _Output(
            decoder, StopStrings(params.stop, include=params.include_stop_str_in_output), params.logprobs is not None
        )

    def append(self, request: Request, token_id: int) -> str | None:
        """Take one more output token; the stop string its text completed, if any."""
        output = self._outputs[request.request_id]
        protect = request.num_output_tokens <= request.params.min_tokens
        stop = None if protect else self._special_stop(request, token_id)
        if stop is not None:
            output.close(stop if request.params.include_stop_str_in_output else "")
            return stop
        output.append(token_id, protect=protect)
        return output.text.matched

    def append_end(self, request: Request, token_id: int, *, visible: bool) -> None:
        """Take the last output token, which ends the text by itself."""
        output = self._outputs[request.request_id]
        output.close(output.decoder.step(token_id) if visible else "")

    def take(self, request: Request) -> TextPiece:
        """What is new and safe to show; with the end of the request, all of it."""
        finished = request.finish_reason is not None
        piece = self._outputs[request.request_id].take(last=finished)
        if finished:
            del self._outputs[request.request_id]
        return piece

    def drop(self, request: Request) -> None:
        """Forget a request whose text nobody will take; harmless if it is known no more."""
        self._outputs.pop(request.request_id, None)

    def _special_stop(self, request: Request, token_id: int) -> str | None:
        """A stop string that is exactly the text of a special token counts as that token's id."""
        special = (stop for stop in request.params.stop if self._tokenizer.special_ids.get(stop) == token_id)
        return next(special, None)
