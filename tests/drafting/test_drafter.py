"""Which guesses get a row, by what they promise and what a row costs."""

from collections.abc import Sequence

from openai_kv.drafting.drafter import MOST_SAMPLED, Drafter, StepSize
from openai_kv.drafting.track import Guess, Source, Track
from openai_kv.request import Request
from tests.harness import free_rows, make_request

ALONE = StepSize(rows=1, sampled=1, budget=100)
LONGEST = 16


def counting(kind: str, start: int = 0) -> Source:
    """Guesses start, start + 1, ..."""
    return lambda track, length: Guess(kind, range(start, start + length))


def silent(track: Track, length: int) -> Guess | None:
    return None


def linear(per_row: float) -> Drafter:
    """A step costs 1 and `per_row` more for every row but the first."""
    return Drafter([counting("x")], lambda rows: 1 + per_row * (rows - 1), LONGEST)


def drafted(drafter: Drafter, request: Request, size: StepSize = ALONE) -> Sequence[int]:
    return drafter.propose({request: 100}, size).get(request, ())


def tell(drafter: Drafter, request: Request, said: Sequence[int], times: int) -> None:
    """So often the request says `said`, whatever is drafted."""
    for _ in range(times):
        drafter.propose({request: 100}, ALONE)
        drafter.observe(request.request_id, said)


def test_what_comes_true_is_drafted_longer_and_what_does_not_no_more() -> None:
    drafter, request = linear(0.05), make_request([1])
    first = len(drafted(drafter, request))
    tell(drafter, request, range(LONGEST), 5)
    assert len(drafted(drafter, request)) > first > 0
    tell(drafter, request, [99], 100)
    assert drafted(drafter, request) == ()
    assert first > len(drafted(drafter, make_request([2]))), "others are taken for no better"


def test_guesses_are_learned_from_without_a_row() -> None:
    drafter, request = linear(0.05), make_request([1])
    tell(drafter, request, [99], 40)
    assert drafted(drafter, request) == ()
    tell(drafter, request, [0], 20)
    assert len(drafted(drafter, request)) > 2


def test_where_rows_are_dear_nothing_is_drafted() -> None:
    drafter, request = linear(1.0), make_request([1])
    tell(drafter, request, range(LONGEST), 20)
    assert drafted(drafter, request) == ()


def test_many_requests_draft_less_than_one() -> None:
    def per_request(count: int) -> float:
        drafter, requests = linear(0.06), [make_request([number]) for number in range(count)]
        drafts = drafter.propose(dict.fromkeys(requests, 100), StepSize(count, count, 1000))
        return sum(map(len, drafts.values())) / count

    assert per_request(1) >= 2
    assert 0 < per_request(4) < per_request(1)
    assert per_request(24) == 0


def test_one_that_is_sure_of_itself_does_not_hold_up_the_others() -> None:
    drafter, sure, others = linear(0.05), make_request([0]), [make_request([number]) for number in range(1, 8)]
    tell(drafter, sure, range(LONGEST), 10)
    assert len(drafted(drafter, sure)) == LONGEST
    among = drafter.propose({sure: 100, **dict.fromkeys(others, 0)}, StepSize(8, 8, 1000))
    assert 0 < len(among[sure]) < 5


def test_the_likeliest_rows_first() -> None:
    drafter, good, bad = linear(0.05), make_request([1]), make_request([2])
    tell(drafter, good, range(LONGEST), 10)
    tell(drafter, bad, [99], 20)
    drafts = drafter.propose({good: 100, bad: 100}, StepSize(2, 2, 5))
    assert len(drafts[good]) == 5 and bad not in drafts


def test_limits() -> None:
    drafter, request = Drafter([counting("x")], free_rows, LONGEST), make_request([1])
    tell(drafter, request, range(LONGEST), 5)
    assert drafted(drafter, request) == range(LONGEST)
    assert len(drafted(drafter, request, StepSize(1, 1, 3))) == 3
    assert len(drafted(drafter, request, StepSize(1, MOST_SAMPLED - 9, 100))) == 9
    assert drafted(drafter, request, StepSize(99, MOST_SAMPLED + 9, 100)) == ()
    assert drafter.propose({request: 2}, ALONE)[request] == range(2)
    assert drafter.propose({request: 0}, ALONE) == {}
    assert drafter.propose({}, StepSize(0, 0, 100)) == {}


def test_the_source_that_is_right_is_asked_first() -> None:
    drafter = Drafter([silent, counting("wrong", 50), counting("right")], free_rows, LONGEST)
    request = make_request([1])
    assert drafted(drafter, request)[0] == 50
    tell(drafter, request, range(LONGEST), 5)
    assert drafted(drafter, request)[0] == 0


def test_an_ended_request_leaves_nothing_but_its_experience() -> None:
    drafter, request = linear(0.05), make_request([1])
    tell(drafter, request, range(LONGEST), 50)
    drafter.forget(request.request_id)
    drafter.forget("unknown")
    drafter.observe(request.request_id, [1])
    assert drafter._tracks == {}
    assert len(drafted(drafter, make_request([2]))) > 5
