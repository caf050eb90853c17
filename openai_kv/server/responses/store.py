"""Responses that may be asked for again, or gone on from: the latest, for a while, each for its own key only."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from openai_kv.server.responses.conversation import Conversation


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`answer` is its JSON; `size`: the bytes that were sent and answered to get here, the whole conversation's.

    `owner` is the digest of the key that wrote it, b"" if there are no keys.
    """

    owner: bytes
    answer: bytes
    conversation: Conversation
    size: int


class ResponseStore:
    """In order of arrival, which is that of expiry too. `seconds`: how long one is kept; `clock` counts seconds."""

    def __init__(
        self, max_count: int, max_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_bytes = 0
        self.clock = clock
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._stored: OrderedDict[str, tuple[float, StoredResponse]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response_id: str, response: StoredResponse) -> None:
        """The oldest make room; one that is too large by itself is not kept."""
        self._expire()
        if response.size > self._max_bytes or not self._max_count:
            return
        self._stored[response_id] = (self.clock() + self._seconds, response)
        self.num_bytes += response.size
        while len(self._stored) > self._max_count or self.num_bytes > self._max_bytes:
            self._drop(next(iter(self._stored)))

    def get(self, response_id: str, owner: bytes) -> StoredResponse | None:
        """None for one that is not there, not there any more, or another's: which of them can't be told."""
        self._expire()
        _, response = self._stored.get(response_id, (0.0, None))
        return response if response is not None and response.owner == owner else None

    def delete(self, response_id: str, owner: bytes) -> bool:
        """False where `get` gives None."""
        if self.get(response_id, owner) is None:
            return False
        self._drop(response_id)
        return True

    def _expire(self) -> None:
        while self._stored:
            oldest, (end, _) = next(iter(self._stored.items()))
            if end > self.clock():
                return
            self._drop(oldest)

    def _drop(self, response_id: str) -> None:
        _, response = self._stored.pop(response_id)
        self.num_bytes -= response.size
