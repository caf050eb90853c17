"""What to say first of several mistakes, and what may have been meant."""

import difflib
from collections.abc import Iterable

from pydantic import ValidationError
from pydantic_core import ErrorDetails


def first_error(error: ValidationError) -> ErrorDetails:
    """A name that isn't known comes first: a missing one may be the same, misspelt."""
    return min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """What is alike; else the one name of which `word` is the beginning, or what follows the last point."""
    names = sorted(known)
    whole = [name for name in names if name.startswith(word) or name.endswith(f".{word}")]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.75) or whole
    return f"; did you mean {close[0]}?" if len(close) == 1 else ""
