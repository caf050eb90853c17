"""No policy's decision grows with the pool by more than a logarithm, counted in lines that run, not in time."""

from collections.abc import Set as AbstractSet
from functools import partial
from math import log2
from pathlib import Path
from random import Random

import pytest

from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.plugins import PluginRegistry, load_plugins
from openai_kv.testing.conformance import MakePolicy
from openai_kv.testing.flat import FlatCache
from openai_kv.testing.watch import WatchedPolicy
from tests.counted import count_comparisons, count_steps

EXAMPLES = Path(__file__).parent.parent.parent / "plugins"
SMALL, LARGE, REPLACED = 1_000, 8_000, 500
MAX_PER_DOUBLING = (
    20  # a heap's path is one level longer: some comparisons of a few lines, for all that `auto` keeps too
)


class Scans(EvictionPolicy):
    name = "scans"

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        return min(candidates, key=lambda block: (block.last_accessed, block.block_id))


class ScansAtLast(LRUPolicy):
    """Keeps an order, and yet looks at all it keeps."""

    name = "scans_at_last"

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        return min(self._queue._live, key=lambda block: (block.last_accessed, block.block_id))


def policies(registry: PluginRegistry) -> list[str]:
    return [plugin.name for plugin in registry.plugins if plugin.hook == "register_eviction_policies"]


def steps(make: MakePolicy, size: int, replaced: int = REPLACED) -> float:
    """Of one eviction with all that belongs to it, in a full cache of one-block chains, a third of which was hit."""
    policy = WatchedPolicy(make())
    cache, random = FlatCache(policy, size), Random(0)
    cache.churn(size)
    for block in random.choices(cache.store.pool.blocks, k=size // 3):
        if block.node is not None:
            cache.touch(block)
    with count_steps() as counted:
        cache.churn(replaced)
    assert policy.decisions >= replaced
    return (counted.number + policy.examined) / replaced


def per_doubling(small: float, large: float, ratio: float) -> float:
    return (large - small) / log2(ratio)


@pytest.mark.parametrize("name", policies(load_plugins(str(EXAMPLES))))
def test_a_decision_takes_a_logarithm_of_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count_comparisons(monkeypatch)
    make = partial(load_plugins(str(EXAMPLES)).create_policy, name, {})
    assert per_doubling(steps(make, SMALL), steps(make, LARGE), LARGE / SMALL) < MAX_PER_DOUBLING


@pytest.mark.parametrize("policy", [Scans, ScansAtLast])
def test_a_scan_is_told_from_that(policy: type[EvictionPolicy]) -> None:
    assert per_doubling(steps(policy, 100, 20), steps(policy, 800, 20), 8) > 10 * MAX_PER_DOUBLING
