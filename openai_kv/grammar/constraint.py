"""One output held to its grammar: the mask of the next token is made while the model still computes its logits."""

import logging
from collections.abc import Callable
from concurrent.futures import Future

from llguidance import LLMatcher

from openai_kv.grammar.digits import MAX_DIGITS, DigitLimit

logger = logging.getLogger(__name__)
Submit = Callable[[Callable[[], bytes]], "Future[bytes]"]


class MatcherConstraint:
    """Follows one output. Engine thread only; `submit` runs a function in another thread.

    `finished`: nothing may follow; `failed`: because the grammar became too complex to follow.
    """

    def __init__(self, matcher: LLMatcher, submit: Submit, limit: DigitLimit) -> None:
        self._matcher = matcher
        self._submit = submit
        self._limit = limit
        self._num_digits = 0
        self._mask = submit(matcher.compute_bitmask)
        self.finished = False
        self.failed = False

    def mask(self) -> bytes:
        """A bit per token id, the lowest id in the lowest bit: 1 where the token may come next."""
        mask = self._mask.result()
        return mask if self._num_digits < MAX_DIGITS else self._limit.end_number(mask)

    def advance(self, token_id: int) -> None:
        """Take the token that was drawn by the mask."""
        self._mask.result()
        self._matcher.consume_token(token_id)
        self._num_digits = self._limit.count(self._num_digits, token_id)
        self.finished, self.failed = self._matcher.is_stopped(), self._matcher.is_error()
        if not self.finished:
            self._mask = self._submit(self._matcher.compute_bitmask)
        if self.failed:
            logger.error("a grammar can't be followed any further: %s", self._matcher.stop_reason())
