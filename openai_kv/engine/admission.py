"""The bounded queue in front of the engine: who waits, and when the answer is 429."""

import math
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from openai_kv.errors import OverloadedError


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many HTTP requests and how many prompt tokens may wait, and for how many seconds each."""

    max_queue: int = 256
    max_queued_tokens: int = 1_048_576
    queue_timeout: float = 120.0


@dataclass(frozen=True, slots=True)
class _Entry:
    group: str
    num_tokens: int


class WaitingRoom:
    """Requests that have not had their first step. Entered by the event loop, left by the engine thread."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._groups: Counter[str] = Counter()
        self._begun: set[str] = set()
        self._num_tokens = 0
        self._seconds_per_request = 1.0

    def __contains__(self, request_id: str) -> bool:
        with self._lock:
            return request_id in self._entries

    def may_expire(self, request_id: str) -> bool:
        """Whether it waits, and nothing of its group has had a first step."""
        with self._lock:
            entry = self._entries.get(request_id)
            return entry is not None and entry.group not in self._begun

    def enter(self, group: str, num_tokens: Mapping[str, int]) -> None:
        """All sequences of one HTTP request, by their ids, with how many prompt tokens each; `group` counts once.

        Raises OverloadedError when the queue is full.
        """
        with self._lock:
            if self._groups:
                self._check(len(self._groups), self._num_tokens + sum(num_tokens.values()))
            self._entries |= {request_id: _Entry(group, count) for request_id, count in num_tokens.items()}
            self._groups[group] += len(num_tokens)
            self._num_tokens += sum(num_tokens.values())

    def leave(self, request_id: str) -> None:
        with self._lock:
            entry = self._entries.pop(request_id, None)
            if entry is None:
                return
            self._num_tokens -= entry.num_tokens
            self._groups[entry.group] -= 1
            self._begun.add(entry.group)
            if not self._groups[entry.group]:
                del self._groups[entry.group]
                self._begun.discard(entry.group)

    def served(self, seconds: float) -> None:
        """A seat was taken for so long, by the number of seats: the running estimate behind Retry-After."""
        self._seconds_per_request += 0.2 * (seconds - self._seconds_per_request)

    def retry_after(self, num_waiting: int) -> int:
        return max(1, min(60, math.ceil(num_waiting * self._seconds_per_request)))

    def _check(self, num_waiting: int, num_tokens: int) -> None:
        if num_waiting >= self._limits.max_queue:
            raise self._overloaded("max_num_queued_reqs", f"{num_waiting} requests wait already", num_waiting)
        if num_tokens > self._limits.max_queued_tokens:
            raise self._overloaded("max_num_queued_tokens", "too many prompt tokens wait already", num_waiting)

    def _overloaded(self, reason: str, why: str, num_waiting: int) -> OverloadedError:
        message = f"The server is overloaded: {why}."
        return OverloadedError(message, retry_after=self.retry_after(num_waiting), reason=reason)
