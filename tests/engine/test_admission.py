import pytest

from openai_kv.engine.admission import QueueLimits, WaitingRoom
from openai_kv.errors import OverloadedError


def test_refuses_beyond_max_queue_and_takes_again_after_one_left() -> None:
    room = WaitingRoom(QueueLimits(max_queue=2))
    room.enter("a", {"a": 1})
    room.enter("b", {"b": 1})
    with pytest.raises(OverloadedError) as caught:
        room.enter("c", {"c": 1})
    assert (caught.value.code, caught.value.reason) == ("queue_full", "max_num_queued_reqs")
    assert 1 <= (caught.value.retry_after or 0) <= 60
    room.leave("a")
    room.enter("c", {"c": 1})
    assert "c" in room
    assert "a" not in room


def test_sequences_of_one_http_request_count_once() -> None:
    room = WaitingRoom(QueueLimits(max_queue=1))
    room.enter("a", {"a-0": 1, "a-1": 1})
    with pytest.raises(OverloadedError):
        room.enter("b", {"b": 1})


def test_a_group_waits_until_its_last_sequence_left_and_leaving_twice_counts_once() -> None:
    room = WaitingRoom(QueueLimits(max_queue=2, max_queued_tokens=10))
    room.enter("a", {"a-0": 3, "a-1": 3})
    for _ in range(2):
        room.leave("a-0")
    room.enter("b", {"b": 7})
    with pytest.raises(OverloadedError, match="2 requests wait"):
        room.enter("c", {"c": 0})
    room.leave("a-1")
    with pytest.raises(OverloadedError, match="prompt tokens"):
        room.enter("c", {"c": 4})
    room.enter("c", {"c": 3})


def test_a_group_that_has_begun_does_not_expire() -> None:
    room = WaitingRoom(QueueLimits())
    room.enter("a", {"a-0": 3, "a-1": 0})
    room.enter("b", {"b": 1})
    assert room.may_expire("a-0") and room.may_expire("a-1")
    room.leave("a-0")
    assert not room.may_expire("a-0") and not room.may_expire("a-1")
    assert room.may_expire("b")
    room.leave("a-1")
    room.enter("a", {"a-0": 1})
    assert room.may_expire("a-0"), "nothing is remembered of a group that is gone"


def test_token_limit_never_refuses_when_nothing_waits() -> None:
    room = WaitingRoom(QueueLimits(max_queued_tokens=10))
    room.enter("big", {"big": 1000})
    with pytest.raises(OverloadedError) as caught:
        room.enter("b", {"b": 1})
    assert caught.value.reason == "max_num_queued_tokens"
    room.leave("big")
    room.enter("c", {"c-0": 6, "c-1": 6})
    room.leave("c-0")
    with pytest.raises(OverloadedError):
        room.enter("d", {"d-0": 2, "d-1": 3})
    assert "d-0" not in room, "all of a group or nothing"


def test_retry_after_follows_the_service_time() -> None:
    room = WaitingRoom(QueueLimits())
    before = room.retry_after(10)
    for _ in range(50):
        room.served(0.05)
    assert room.retry_after(10) == 1 < before
    for _ in range(50):
        room.served(1000.0)
    assert room.retry_after(10) == 60
