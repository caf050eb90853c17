import logging
from collections.abc import Set as AbstractSet

import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.eviction import Evictor
from openai_kv.cache.policy import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.metrics import EvictionStats, LookupStats


class Listener:
    def __init__(self) -> None:
        self.errors: list[tuple[str, str]] = []

    def on_lookup(self, stats: LookupStats) -> None: ...

    def on_eviction(self, stats: EvictionStats) -> None: ...

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        self.errors.append((plugin, hook))


class Answers(EvictionPolicy):
    name = "answers"

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]


def blocks(*last_accessed: int) -> list[Block]:
    made = [Block(block_id) for block_id in range(len(last_accessed))]
    for block, tick in zip(made, last_accessed, strict=True):
        block.last_accessed = tick
    return made


@pytest.mark.parametrize("answer", [None, [], 7, RuntimeError("no"), SystemExit(1), Block(9).info])
def test_the_least_recently_used_goes_where_the_policy_fails(answer: object) -> None:
    listener = Listener()
    evictor = Evictor(Answers(answer), listener)
    some = blocks(5, 3, 4)
    for block in some:
        evictor.add(block)
    order = []
    for round_ in range(3):
        victim = evictor.victim()
        assert victim.policy == "lru"
        assert listener.errors == [("answers", "select_victim")] * (round_ + 1)
        order.append(victim.block.block_id)
        evictor.forget(victim.block)
    assert order == [1, 2, 0]


def test_the_fallback_follows_what_happens_after_it_started() -> None:
    evictor = Evictor(Answers(None), Listener())
    first, second, third = blocks(1, 2, 3)
    evictor.add(first)
    evictor.add(second)
    assert evictor.victim().block is first
    evictor.remove(first)
    assert evictor.victim().block is second
    evictor.add(third)
    second.last_accessed = 9
    evictor.on_access(second)
    assert evictor.victim().block is third


def test_a_failing_hook_is_logged_once_and_reported_each_time(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Answers):
        def on_insert(self, block: BlockInfo) -> None:
            raise ValueError("broken")

        def admit(self, block: BlockInfo) -> bool:
            raise ValueError("broken")

    listener = Listener()
    evictor = Evictor(Fails(None), listener)
    with caplog.at_level(logging.ERROR):
        evictor.on_insert(Block(0))
        evictor.on_insert(Block(1))
        assert evictor.admits(Block(0))
    assert listener.errors == [("answers", "on_insert")] * 2 + [("answers", "admit")]
    assert len(caplog.records) == 2


def test_candidates_are_shown_read_only() -> None:
    seen: list[AbstractSet[BlockInfo]] = []

    class Looks(Answers):
        def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
            seen.append(candidates)
            return next(iter(candidates))

    evictor = Evictor(Looks(None), Listener())
    (block,) = blocks(1)
    evictor.add(block)
    assert evictor.victim().block is block
    (candidates,) = seen
    assert isinstance(candidates, AbstractSet)
    assert not {"add", "discard", "remove", "clear", "pop"} & set(dir(candidates))


class ByDepth(PriorityPolicy):
    name = "by_depth"

    def priority(self, block: BlockInfo) -> float:
        return block.depth


def test_priority_policy_picks_the_smallest_and_forgets_what_left() -> None:
    policy = ByDepth()
    some = blocks(0, 0, 0)
    for depth, block in zip((2, 1, 3), some, strict=True):
        block.depth = depth
        policy.on_evictable(block.info)
    assert policy.select_victim(set()) is some[1].info
    policy.on_unevictable(some[1].info)
    assert policy.select_victim(set()) is some[0].info
    some[0].depth = 4
    policy.on_access(some[0].info)
    assert policy.select_victim(set()) is some[2].info


def test_priority_policy_stays_small_without_evictions() -> None:
    policy = ByDepth()
    (block,) = blocks(0)
    for _ in range(1000):
        policy.on_evictable(block.info)
        policy.on_unevictable(block.info)
    assert len(policy._queue._heap) < 50
