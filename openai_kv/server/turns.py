"""How long a thread keeps the interpreter while another one waits for it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 0.0005


@contextmanager
def short_turns() -> Iterator[None]:
    """The engine's thread gives the interpreter away in every operator of a forward pass.

    With Python's own 5 ms it then waits until the event loop has delivered a whole step: docs/fast.md has figures.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
