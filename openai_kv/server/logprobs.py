"""Log probabilities in the three forms of the contract."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from openai_kv.request import TokenLogprobs
from openai_kv.token_bytes import bytes_as_text
from openai_kv.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LogprobFormat:
    """Writes entries with their `count` most likely tokens, which may be fewer than they hold."""

    tokenizer: Tokenizer

    def text(self, token_id: int) -> str:
        return bytes_as_text(self.tokenizer.token_bytes(token_id) or b"")

    def chat(self, entries: Sequence[TokenLogprobs], count: int) -> list[dict[str, Any]]:
        return [
            {
                **self._token(entry.token_id, entry.logprob),
                "top_logprobs": [self._token(*pair) for pair in entry.top[:count]],
            }
            for entry in entries
        ]

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.token_bytes(token_id)
        return {
            "token": bytes_as_text(data or b""),
            "logprob": logprob,
            "bytes": None if data is None else list(data),
        }

    def native(self, entries: Sequence[TokenLogprobs], count: int) -> list[dict[str, Any]]:
        """Those of a chat, with the token ids."""
        items = self.chat(entries, count)
        for entry, item in zip(entries, items, strict=True):
            item["token_id"] = entry.token_id
            for (token_id, _), other in zip(entry.top, item["top_logprobs"], strict=False):
                other["token_id"] = token_id
        return items

    def completion(self, entries: Sequence[TokenLogprobs], count: int, offset: int = 0) -> dict[str, list[Any]]:
        """`offset`: characters of the choice's text before the output."""
        return {
            "tokens": [self.text(entry.token_id) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [self._top(entry, count) for entry in entries],
            "text_offset": [offset + entry.text_offset for entry in entries],
        }

    def _top(self, entry: TokenLogprobs, count: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for token_id, logprob in (*entry.top[:count], (entry.token_id, entry.logprob)):
            found.setdefault(self.text(token_id), logprob)
        return found

    def prompt(self, entries: Sequence[TokenLogprobs], count: int) -> list[dict[str, Any] | None]:
        """vLLM's `prompt_logprobs`, the first token's included."""
        return [None, *(self._ranked(entry, count) for entry in entries)]

    def _ranked(self, entry: TokenLogprobs, count: int) -> dict[str, Any]:
        ranked = {token_id: (logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top[:count], 1)}
        ranked.setdefault(entry.token_id, (entry.logprob, entry.rank))
        return {
            str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": self.text(token_id)}
            for token_id, (logprob, rank) in ranked.items()
        }
