"""How many of a choice's tokens are reasoning, markers included."""

from collections.abc import Sequence

from openai_kv.parsing.reasoning import ThinkReader
from openai_kv.tokenizer import StreamDecoder


class ReasoningTokens:
    """Reads the tokens one by one: text that is held back or cut off has been generated all the same."""

    def __init__(self, decoder: StreamDecoder, *, starts_inside: bool) -> None:
        self.count = 0
        self._decoder = decoder
        self._reader = ThinkReader(starts_inside)
        self._of_marker = 0

    def take(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            was_inside = self._reader.is_inside
            self._reader.feed(self._decoder.step(token_id))
            self._of_marker += not was_inside
            if was_inside or self._reader.is_inside:
                self.count += 1 if was_inside else self._of_marker
            if was_inside or not self._reader.holds_marker:
                self._of_marker = 0
