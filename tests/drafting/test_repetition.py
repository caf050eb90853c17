"""Guesses from a request's own text."""

import random

import pytest

from openai_kv.drafting.repetition import LONGEST, repeat
from openai_kv.drafting.track import Guess, Track
from tests.harness import make_request


def guess(text: list[int], length: int = 4) -> Guess | None:
    return repeat(Track(make_request(text)), length)


def test_what_followed_the_last_two_tokens_before() -> None:
    assert guess([9, 1, 2, 3, 4, 5, 1, 2]) == Guess("repetition 2", [3, 4, 5, 1])


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2, 3], [1, 2, 2, 1], [3, 1, 4, 1, 5]])
def test_no_idea(text: list[int]) -> None:
    assert guess(text) is None


def test_the_longest_agreement_wins_and_of_equals_the_latest() -> None:
    longer = [5, 6, 7, 8, 50, 0, 6, 7, 8, 60, 1, 5, 6, 7, 8]
    assert guess(longer, 1) == Guess("repetition 4", [50])
    equal = [7, 8, 50, 0, 7, 8, 60, 1, 7, 8]
    assert guess(equal, 1) == Guess("repetition 2", [60])


def test_a_loop_goes_on() -> None:
    assert guess([4, 1, 2, 3, 1, 2, 3, 1, 2], 5) == Guess("repetition 4", [3, 1, 2, 3, 1])
    assert guess([5, 5, 5], 3) == Guess("repetition 2", [5, 5, 5])


def test_the_text_grows_with_the_request() -> None:
    request = make_request([1, 2, 3])
    track = Track(request)
    assert repeat(track, 2) is None
    request.token_ids += [1, 2]
    assert repeat(track, 2) == Guess("repetition 2", [3, 1])
    request.token_ids += [3, 1, 2]
    assert repeat(track, 2) == Guess("repetition 4", [3, 1])


def test_every_guess_is_what_stands_behind_an_earlier_end() -> None:
    rng = random.Random(1)
    for _ in range(200):
        text = [rng.randrange(4) for _ in range(rng.randrange(3, 40))]
        found = guess(text, 3)
        ends = [end for end in range(2, len(text)) if text[end - 2 : end] == text[-2:]]
        assert (found is None) == (not ends)
        if found is not None:
            agreeing = int(found.kind.removeprefix("repetition "))
            assert 2 <= agreeing <= LONGEST
            assert any(
                text[max(0, end - agreeing) : end] == text[-agreeing:]
                and (text[end:] + (text[end:] * 3))[:3] == found.token_ids
                for end in ends
            )
