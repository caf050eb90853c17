"""When a request has said all it will. After vLLM's check_stop."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from openai_kv.request import FinishReason, Request


class OutputText(Protocol):
    """Follows the text of each request; the engine's Detokenizer."""

    def append(self, request: Request, token_id: int) -> str | None:
        """Take one more output token; the stop string its text completed, if any."""

    def append_end(self, request: Request, token_id: int, *, visible: bool) -> None:
        """Take the last output token, which ends the text by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class StopCheck:
    """Whatever can end a request that has one token more: its grammar, that token, its text, its length."""

    text: OutputText
    eos_token_ids: AbstractSet[int]
    max_model_len: int

    def take(self, request: Request, token_id: int) -> FinishReason | None:
        """`token_id` is the last of the request's tokens and goes into its text here; None: it goes on."""
        params, constraint = request.params, request.constraint
        if constraint is not None and constraint.failed:
            return FinishReason.ERROR
        if token_id in self.eos_token_ids and not params.ignore_eos:
            self.text.append_end(request, token_id, visible=False)
            return FinishReason.STOP
        if token_id in params.stop_token_ids:
            request.stop_reason = token_id
            self.text.append_end(request, token_id, visible=params.include_stop_str_in_output)
            return FinishReason.STOP
        request.stop_reason = self.text.append(request, token_id)
        if request.stop_reason is not None or (constraint is not None and constraint.finished):
            return FinishReason.STOP
        return FinishReason.LENGTH if self._is_full(request) else None

    def _is_full(self, request: Request) -> bool:
        too_long = len(request.token_ids) >= self.max_model_len
        return too_long or request.num_output_tokens >= request.params.max_tokens
