from dataclasses import dataclass

from openai_kv.server.responses.conversation import Conversation
from openai_kv.server.responses.store import ResponseStore, StoredResponse


@dataclass
class Time:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def response(size: int = 10, owner: bytes = b"alice") -> StoredResponse:
    return StoredResponse(owner, b"{}", Conversation(), size)


def test_only_its_owner_sees_it() -> None:
    store = ResponseStore(9, 100, 60)
    stored = response()
    store.put("a", stored)
    assert store.get("a", b"alice") is stored
    assert store.get("a", b"bob") is None and store.get("a", b"") is None and store.get("b", b"alice") is None
    assert not store.delete("a", b"bob")
    assert store.delete("a", b"alice") and not store.delete("a", b"alice")
    assert (len(store), store.num_bytes) == (0, 0)


def test_the_oldest_make_room_in_count_and_bytes() -> None:
    store = ResponseStore(3, 100, 60)
    for name in "abcd":
        store.put(name, response())
    assert [store.get(name, b"alice") is not None for name in "abcd"] == [False, True, True, True]
    store.put("e", response(85))
    assert [store.get(name, b"alice") is not None for name in "bcde"] == [False, False, True, True]
    assert store.num_bytes == 95


def test_what_is_larger_than_the_store_does_not_empty_it() -> None:
    store = ResponseStore(3, 100, 60)
    store.put("a", response())
    store.put("b", response(101))
    assert store.get("a", b"alice") and store.get("b", b"alice") is None


def test_a_store_of_nothing_keeps_nothing() -> None:
    store = ResponseStore(0, 100, 60)
    store.put("a", response())
    assert len(store) == 0


def test_they_end_in_time() -> None:
    time = Time()
    store = ResponseStore(3, 100, 60, time)
    store.put("a", response())
    time.now = 30
    store.put("b", response())
    time.now = 59.9
    assert store.get("a", b"alice")
    time.now = 60
    assert store.get("a", b"alice") is None and store.get("b", b"alice")
    assert (len(store), store.num_bytes) == (1, 10)
    time.now = 90
    store.put("c", response())
    assert (len(store), store.num_bytes) == (1, 10), "what is over is let go when another comes"
