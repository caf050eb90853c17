"""The suite for plugin authors finds what it promises to find."""

import random
from collections.abc import Set as AbstractSet

import pytest

from openai_kv import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.testing import (
    PolicyConformance,
    PolicyFailure,
    check_cost,
    check_determinism,
    check_lives,
    check_memory,
    check_policy,
)


class Sound(PriorityPolicy):
    name = "sound"

    def priority(self, block: BlockInfo) -> float:
        return block.depth


class Weighted(Sound):
    """Has options, and does not call the base class's constructor."""

    def __init__(self, weight: int = 2) -> None:
        self.weight = weight

    def priority(self, block: BlockInfo) -> float:
        return block.hit_count * self.weight


class Holds(PriorityPolicy):
    """Forgets that a block is in use again."""

    name = "holds"

    def priority(self, block: BlockInfo) -> float:
        return -block.last_accessed

    def on_unevictable(self, block: BlockInfo) -> None: ...


class Gone(LRUPolicy):
    """Forgets that a block is gone."""

    name = "gone"

    def on_evict(self, block: BlockInfo) -> None: ...


class Raises(LRUPolicy):
    name = "raises"

    def admit(self, block: BlockInfo) -> bool:
        if block.turn == 3:
            raise ValueError("three")
        return True


class Nothing(EvictionPolicy):
    name = "nothing"

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        return None  # type: ignore[return-value]


class Chance(PriorityPolicy):
    """Its generator is seeded by the system."""

    name = "chance"

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random()

    def priority(self, block: BlockInfo) -> float:
        return self.random.random()


class Hoards(LRUPolicy):
    name = "hoards"

    def __init__(self) -> None:
        super().__init__()
        self.ghosts: set[int] = set()

    def on_evict(self, block: BlockInfo) -> None:
        super().on_evict(block)
        self.ghosts.add(block.key)


class Scans(EvictionPolicy):
    name = "scans"

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        return min(candidates, key=lambda block: (block.last_accessed, -block.depth, block.block_id))


class Refuses(LRUPolicy):
    name = "refuses"

    def admit(self, block: BlockInfo) -> bool:
        return False


class TestSound(PolicyConformance):
    def make_policy(self) -> EvictionPolicy:
        return Sound()


def test_a_sound_policy_gets_a_report() -> None:
    report = check_policy(Sound, sizes=(100, 200))
    assert (report.name, [cost.num_blocks for cost in report.costs]) == ("sound", [100, 200])
    assert report.evictions > 100
    assert 0 < report.objects < 1000
    assert all(cost.seconds > 0 and cost.examined == 0 for cost in report.costs)
    assert str(report).startswith(f"sound: {report.evictions} evictions")


def test_the_seed_decides_the_lives() -> None:
    assert check_lives(Sound, seed=1) == check_lives(Sound, seed=1)
    assert len({check_lives(Sound, seed=seed, steps=300) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        (Holds, "holds: select_victim answered .* which is in use: running requests hold 1"),
        (Gone, "gone: select_victim answered .* not among the candidates"),
        (Raises, "raises: admit raised ValueError: three"),
        (Nothing, "nothing: select_victim answered None, which is no block"),
    ],
)
def test_a_wrong_answer_and_an_exception_are_found(
    policy: type[EvictionPolicy], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PolicyFailure, match=problem) as caught:
        check_lives(policy)
    assert isinstance(caught.value.__cause__, ValueError) == (policy is Raises)
    assert caplog.records == [], "it is told once, by what is raised"


def test_chance_without_a_seed_is_found() -> None:
    with pytest.raises(PolicyFailure, match=r"chance: eviction number \d+ differs"):
        check_determinism(Chance)


def test_one_object_for_two_caches_is_found() -> None:
    policy = Refuses()
    with pytest.raises(PolicyFailure, match="the same object was given twice"):
        check_determinism(lambda: policy)


def test_memory_that_grows_is_found() -> None:
    with pytest.raises(PolicyFailure, match=r"hoards: keeps 1\d{4} objects more"):
        check_memory(Hoards)


def test_a_scan_is_found() -> None:
    check_lives(Scans, steps=300)
    with pytest.raises(PolicyFailure, match="scans: looks at 300 candidates a decision in a pool of 300"):
        check_cost(Scans, sizes=(50, 300))


def test_a_policy_that_keeps_nothing_is_sound() -> None:
    check_lives(Refuses, steps=300)
    (cost,) = check_cost(Refuses, sizes=(100,))
    assert cost.examined == 0


def test_the_base_class_asks_for_a_policy() -> None:
    with pytest.raises(NotImplementedError):
        PolicyConformance().make_policy()


def test_options_need_no_call_of_the_base_constructor() -> None:
    assert check_lives(Weighted, seed=1, steps=300) > 0
