"""Numbers that come to an end: JSON bounds no number, and a model that once writes digits likes to go on with them.

llama.cpp's grammars bound them too, at 16 digits. Here the bound is so high that no number that anybody reads is cut:
256 bits have 78 digits.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

MAX_DIGITS = 100


@dataclass(frozen=True, slots=True)
class DigitLimit:
    """Of one vocabulary. `counts`: tokens of digits only, with how many; the other two are masks as integers: tokens
    that begin with a digit, and those that begin with a quote, which may come in a text but never in a number.
    """

    counts: dict[int, int]
    digits: int
    quotes: int

    @classmethod
    def of(cls, tokens: Iterable[bytes]) -> "DigitLimit":
        """`tokens`: the bytes of each token id."""
        known = dict(enumerate(tokens))
        counts = {index: len(token) for index, token in known.items() if token.isdigit()}
        digits = (1 << index for index, token in known.items() if token[:1].isdigit())
        quotes = (1 << index for index, token in known.items() if token[:1] == b'"')
        return cls(counts, reduce(or_, digits, 0), reduce(or_, quotes, 0))

    def count(self, digits: int, token_id: int) -> int:
        """How many digits the output ends with, after `token_id`, when it ended with `digits` before."""
        return digits + self.counts[token_id] if token_id in self.counts else 0

    def end_number(self, mask: bytes) -> bytes:
        """No further digit, unless this is a text or the grammar wants one."""
        allowed = int.from_bytes(mask, "little")
        others = allowed & ~self.digits
        return mask if allowed & self.quotes or not others else others.to_bytes(len(mask), "little")
