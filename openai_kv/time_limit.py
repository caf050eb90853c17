"""Ends Python code that takes too long, from within its own thread."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Clock = Callable[[], float]


class TimeUp(Exception):
    """The time of a `time_limit` is over."""


@contextmanager
def time_limit(
    seconds: float, filename: str, clock: Clock = time.thread_time, wall: Clock = time.monotonic
) -> Iterator[None]:
    """Raise TimeUp in the body once `clock`, the thread's own time, is `seconds` later.

    Looked at with every line of code that says it is from `filename`, and with every call of any other Python function:
    no loop outlives it, but one operation in C does. By a trace function, so the rest of the thread is not slower.
    `wall` is looked at first: it costs no system call, and before it no thread's own time is over.
    """
    deadline, earliest = clock() + seconds, wall() + seconds

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        if wall() > earliest and clock() > deadline:
            raise TimeUp
        return trace if frame.f_code.co_filename == filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
