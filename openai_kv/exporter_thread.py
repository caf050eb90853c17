"""One metrics exporter, the thread that calls it and the bounded queue between it and the server."""

import inspect
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from openai_kv.errors import ExporterUnavailableError
from openai_kv.metrics import MetricsExporter


@dataclass(frozen=True, slots=True)
class _Call:
    hook: str
    arguments: tuple[Any, ...] = ()
    answer: Future[Any] | None = None


FLUSH = _Call("flush")
CLOSE = "close"
HOOKS = tuple(name for name, member in vars(MetricsExporter).items() if inspect.isfunction(member))


def overrides(cls: type[MetricsExporter], hook: str) -> bool:
    return getattr(cls, hook) is not getattr(MetricsExporter, hook)


class ExporterThread:
    """`put` and `ask` never wait, whatever the exporter does. `on_error(self, hook, error)` is called in the thread.

    Records go through a SimpleQueue: it takes no Python lock that the thread could hold while it is not scheduled.
    """

    def __init__(
        self,
        exporter: MetricsExporter,
        on_error: Callable[["ExporterThread", str, BaseException], None],
        *,
        capacity: int,
        flush_seconds: float,
    ) -> None:
        self.name = exporter.name
        self._exporter = exporter
        self._hooks = frozenset(name for name in HOOKS if overrides(type(exporter), name))
        self._on_error = on_error
        self._capacity = capacity
        self._flush_seconds = flush_seconds
        self._flush_due: float | None = None
        self._closed = False
        self._queue: SimpleQueue[_Call] = SimpleQueue()
        threading.Thread(target=self._run, name=f"openai-kv-exporter-{self.name}", daemon=True).start()

    def hears(self, hook: str) -> bool:
        """The exporter's class overrides `hook`."""
        return hook in self._hooks

    @property
    def is_full(self) -> bool:
        return self._queue.qsize() >= self._capacity

    def put(self, hook: str, *arguments: Any) -> bool:
        """Have `hook` called; False: the queue is full and the record lost. Nothing is kept that nobody hears."""
        if self._closed or not self.hears(hook):
            return True
        if self.is_full:
            return False
        self._queue.put(_Call(hook, arguments))
        return True

    def ask(self, hook: str) -> Future[Any]:
        """The answer of `hook` after all records put before; ExporterUnavailableError if there is none."""
        answer: Future[Any] = Future()
        if self._closed or self.is_full:
            answer.set_exception(ExporterUnavailableError(f"{self.name} is closed or has no room in its queue"))
        else:
            self._queue.put(_Call(hook, (), answer))
        return answer

    def close(self) -> Future[None]:
        """Flush, close and end the thread after all records put before; done when that is."""
        answer: Future[None] = Future()
        self._closed = True
        self._queue.put(FLUSH)
        self._queue.put(_Call(CLOSE, (), answer))
        return answer

    @property
    def num_waiting(self) -> int:
        return self._queue.qsize()

    # -- in the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        call = FLUSH
        while call.hook != CLOSE:
            call = self._next()
            self._make(call)

    def _next(self) -> _Call:
        """The next call, or a flush that is due: records that come without end must not put it off."""
        if self._flush_due is None:
            return self._queue.get()
        left = self._flush_due - time.monotonic()
        if left > 0:
            with suppress(Empty):
                return self._queue.get(timeout=left)
        return FLUSH

    def _make(self, call: _Call) -> None:
        if call.answer is not None and not call.answer.set_running_or_notify_cancel():
            return
        if call.hook == FLUSH.hook:
            self._flush_due = None
        elif self._flush_due is None and self.hears("flush"):
            self._flush_due = time.monotonic() + self._flush_seconds
        try:
            result, failure = self._result(call), None
        except BaseException as error:  # SystemExit and its like too: the thread is the exporter's own, and goes on
            self._on_error(self, call.hook, error)
            result, failure = None, ExporterUnavailableError(f"{self.name} raised in {call.hook}")
        if call.answer is None:
            return
        if failure is not None:
            call.answer.set_exception(failure)
        else:
            call.answer.set_result(result)

    def _result(self, call: _Call) -> Any:
        result = getattr(self._exporter, call.hook)(*call.arguments)
        if call.hook == "scrape" and not isinstance(result, bytes | None):
            raise TypeError(f"scrape answered {type(result).__name__}, not bytes")
        return result
