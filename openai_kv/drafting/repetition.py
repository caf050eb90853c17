"""The next tokens as a request's own text had them before. Prompt lookup (Saxena 2023), over prompt and output."""

from array import array
from collections.abc import Sequence

import numpy as np

from openai_kv.drafting.track import Guess, Track

SHORTEST, LONGEST = 2, 4  # tokens before a guess that have to agree; more than the longest are no better
MOST_PLACES = 8


def repeat(track: Track, length: int) -> Guess | None:
    """What follows where the last tokens stood before: where most of them agree, of equals the latest place."""
    track.catch_up()
    ends = earlier_ends(track.text)
    if not ends:
        return None
    agreeing, end = max((agreement(track.text, end), end) for end in ends)
    return Guess(f"repetition {agreeing}", follow(track.text, end, length))


def earlier_ends(text: "array[int]") -> list[int]:
    """Positions behind earlier occurrences of the last SHORTEST tokens, a few of the latest; O(tokens), in numpy."""
    if len(text) <= SHORTEST:
        return []
    tokens = np.frombuffer(text, dtype=np.int64)
    same = (tokens[:-2] == tokens[-2]) & (tokens[1:-1] == tokens[-1])
    ends: list[int] = (np.flatnonzero(same)[-MOST_PLACES:] + SHORTEST).tolist()
    return ends


def agreement(text: Sequence[int], end: int) -> int:
    """How many tokens before `end` are those at the end of the text, up to LONGEST."""
    count = SHORTEST
    while count < min(end, LONGEST) and text[end - count - 1] == text[-count - 1]:
        count += 1
    return count


def follow(text: Sequence[int], start: int, length: int) -> list[int]:
    """What stands from `start` on; a text that repeats itself goes on doing so behind its end."""
    period = len(text) - start
    return [text[start + index % period] for index in range(length)]
