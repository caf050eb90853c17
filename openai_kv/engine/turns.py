"""How long a thread keeps the interpreter while another one waits for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

SHORT = 0.0005
USUAL = 0.005  # Python's own; put back as a number, for a second engine may run in this process


@contextmanager
def short_turns() -> Iterator[None]:
    """For a forward pass, whose operators give the interpreter away while they compute.

    The event loop delivers the step before meanwhile, and with usual turns the next operator would wait for all of
    that. Between two passes turns stay long: there it is the event loop that should wait.
    """
    sys.setswitchinterval(SHORT)
    try:
        yield
    finally:
        sys.setswitchinterval(USUAL)
