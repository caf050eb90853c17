"""Turns each request's tokens into text that is safe to show, and finds stop strings in it."""

from dataclasses import dataclass

from openai_kv.request import Request
from openai_kv.tokenizer import StreamDecoder, Tokenizer


@dataclass(slots=True)
class StopStrings:
    """Looks for stop strings in a growing text and knows what may be shown of it.

    The earliest match wins, at the same place the longest; a match counts only if it ends after `protected` characters.
    """

    stops: tuple[str, ...]
    protected: int = 0
    text: str = ""
    shown: int = 0
    matched: str | None = None

    def append(self, piece: str, *, protect: bool = False) -> None:
        """Take more text; with `protect`, a stop string that ends here does not count."""
        assert self.matched is None, "the text has ended"
        self.text += piece
        self.protected = len(self.text) if protect else self.protected
        found = [(at, -len(stop), stop) for stop in self.stops if (at := self._find(stop)) >= 0]
        if found:
            at, _, self.matched = min(found)
            self.text = self.text[:at]

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
        longest = min(max(map(len, self.stops), default=1) - 1, len(self.text) - self.shown)
        tails = (length for length in range(longest, 0, -1) if self._begins_a_stop(length))
        return next(tails, 0)

    def _begins_a_stop(self, length: int) -> bool:
        tail = self.text[-length:]
        return any(stop.startswith(tail) for stop in self.stops)


@dataclass(slots=True)
class _Output:
    decoder: StreamDecoder
    text: StopStrings


class Detokenizer:
    """Text of all running requests, in the engine thread: a stop string ends its request in the step it appears in."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._outputs: dict[str, _Output] = {}

    def add(self, request: Request) -> None:
        decoder = self._tokenizer.stream_decoder(visible=request.params.visible_token_ids)
        self._outputs[request.request_id] = _Output(decoder, StopStrings(request.params.stop))

    def append(self, request: Request, token_id: int) -> str | None:
        """Take one more output token; the stop string its text completed, if any."""
        output = self._outputs[request.request_id]
        protect = request.num_output_tokens <= request.params.min_tokens
        stop = None if protect else self._special_stop(request, token_id)
        if stop is None:
            output.text.append(output.decoder.step(token_id), protect=protect)
        return stop or output.text.matched

    def take(self, request: Request) -> str:
        """What is new and safe to show; with the end of the request, all of it."""
        output = self._outputs[request.request_id]
        finished = request.finish_reason is not None
        if finished and output.text.matched is None:
            output.text.append(output.decoder.flush())
        if finished:
            del self._outputs[request.request_id]
        return output.text.take(last=finished)

    def drop(self, request: Request) -> None:
        """Forget a request whose text nobody will take; harmless if it is known no more."""
        self._outputs.pop(request.request_id, None)

    def _special_stop(self, request: Request, token_id: int) -> str | None:
        """A stop string that is exactly the text of a special token counts as that token's id."""
        special = (stop for stop in request.params.stop if self._tokenizer.special_ids.get(stop) == token_id)
        return next(special, None)
