"""What of one choice is still to be sent."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from openai_kv.outputs import RequestOutput
from openai_kv.request import FinishReason, TokenLogprobs


@dataclass(slots=True)
class Part:
    """All that came since the last `clear`; a request's whole answer if there was none."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, output: RequestOutput) -> None:
        self.text += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason

    def clear(self) -> None:
        """It was sent, but for how it ends."""
        self.text, self.token_ids, self.logprobs, self.prompt_logprobs = "", [], [], []

    def take_tokens(self, start: int) -> list[tuple[str, list[TokenLogprobs]]]:
        """The text, cut where the tokens with log probabilities begin, and these; `start` characters were taken before.

        What is left of the part is to be told with the first of them.
        """
        text, entries, self.text, self.logprobs = self.text, self.logprobs, "", []
        if not entries:
            return [(text, entries)]
        begins = [max(0, entry.text_offset - start) for entry in entries]
        cuts = [0, *begins[1:], len(text)]
        pieces = [text[begin:end] for begin, end in pairwise(cuts)]
        return [(piece, entries[number : number + 1]) for number, piece in enumerate(pieces)]

    @property
    def ending(self) -> dict[str, Any]:
        return {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}

    @property
    def size(self) -> int:
        """Positions with log probabilities: what takes long to write."""
        return len(self.logprobs) + len(self.prompt_logprobs)

    @property
    def mean_logprob(self) -> float:
        """Per output token; 0 for none."""
        return sum(entry.logprob for entry in self.logprobs) / max(len(self.logprobs), 1)
