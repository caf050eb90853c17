import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.exact_index import ExactEntry, ExactIndex


def stored(index: ExactIndex, prompt: tuple[int, ...], tail: Block, namespace: str = "") -> int:
    slot = index.reserve(namespace, prompt)
    assert slot is not None
    index.store(namespace, prompt, tail, slot)
    index.check_slots()
    return slot


def test_finds_whole_prompts_of_the_namespace_only() -> None:
    index, tail = ExactIndex(2), Block(0)
    slot = stored(index, (1, 2, 3), tail)
    assert index.get("", (1, 2, 3)) == ExactEntry(tail, slot)
    assert index.get("", (1, 2)) is None
    assert index.get("salt", (1, 2, 3)) is None


class CollidingToken(int):
    def __hash__(self) -> int:
        return 0


def test_a_hash_never_decides_alone() -> None:
    index = ExactIndex(2)
    one, other = (CollidingToken(1),), (CollidingToken(2),)
    assert hash(one) == hash(other)
    stored(index, one, Block(0))
    assert index.get("", other) is None


def test_the_least_recently_used_entry_makes_room() -> None:
    index, tail = ExactIndex(2), Block(0)
    old = stored(index, (1,), tail)
    stored(index, (2,), tail)
    index.touch(old)
    stored(index, (3,), tail)
    assert index.get("", (1,)) is not None
    assert index.get("", (2,)) is None


def test_slots_are_reserved_released_and_reused() -> None:
    index = ExactIndex(1)
    slot = index.reserve("", (1,))
    assert slot == 0
    assert index.reserve("", (2,)) is None
    index.release(slot)
    assert stored(index, (2,), Block(0)) == slot
    assert index.reserve("", (2,)) is None
    assert index.get("", (2,)) is not None
    assert ExactIndex(0).reserve("", (1,)) is None


def test_the_second_to_store_a_prompt_gives_its_slot_back() -> None:
    index = ExactIndex(2)
    first, second = index.reserve("", (1,)), index.reserve("", (1,))
    assert first is not None and second is not None
    index.store("", (1,), Block(0), first)
    index.store("", (1,), Block(1), second)
    index.check_slots()
    assert index.free_slots == [second]
    entry = index.get("", (1,))
    assert entry is not None and entry.slot == first


def test_entries_go_with_their_block_and_move_with_its_content() -> None:
    index, tail, other = ExactIndex(3), Block(0), Block(1)
    stored(index, (1, 2), tail)
    stored(index, (1, 2, 3), tail)
    kept = stored(index, (9,), other)
    index.move(tail, other)
    index.check_slots()
    index.drop(tail)
    assert len(index.entries) == 3
    index.drop(other)
    index.check_slots()
    assert (len(index.entries), sorted(index.free_slots)) == (0, [0, 1, 2])
    with pytest.raises(KeyError):
        index.release(kept)
