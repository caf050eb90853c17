"""How long a thread keeps the interpreter while another one waits for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 0.0005


@contextmanager
def short_turns() -> Iterator[None]:
    """For a forward pass, whose operators give the interpreter away while they compute.

    The event loop delivers the step before meanwhile; with Python's own 5 ms the next operator would wait for all of
    that. Between two passes turns stay long: there it is the event loop that should wait.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
