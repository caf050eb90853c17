"""`auto` follows the better of its policies, and is each of them where there is but one."""

from collections.abc import Iterable
from itertools import chain
from random import Random

import pytest

from openai_kv.cache.policy import EvictionPolicy
from openai_kv.default_plugins.auto import MEMBERS, AutoPolicy
from openai_kv.default_plugins.lfu import LFUPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.plugins import load_plugins
from openai_kv.simulate.run_case import PolicySource
from tests.default_plugins.flat import FlatCache

CAPACITY = 50


def popular(seed: int, length: int = 3000) -> Iterable[int]:
    """Few contents come again and again among many that come once: worth counting."""
    random = Random(seed)
    return (random.randrange(40) if at % 3 == 0 else 10_000 * (seed + 1) + at for at in range(length))


def drifting(length: int = 8_000) -> Iterable[int]:
    """What came lately comes again, six times in all, and never after that: worth forgetting."""
    random = Random(0)
    return (-1 - max(0, at // 6 + random.randrange(-30, 1)) for at in range(length))


def hits(policy: EvictionPolicy, contents: Iterable[int]) -> int:
    cache = FlatCache(policy, CAPACITY)
    cache.run(contents)
    return cache.hits


@pytest.mark.parametrize("member", MEMBERS)
def test_alone_each_policy_is_itself(member: type[EvictionPolicy]) -> None:
    contents = [*popular(0), *drifting(2000)]
    alone, inside = FlatCache(member(), CAPACITY), FlatCache(AutoPolicy(member.name), CAPACITY)
    assert inside.run(contents) == alone.run(contents)


def test_it_begins_with_the_first_and_follows_the_best() -> None:
    policy = AutoPolicy(("lru", "lfu"))
    cache = FlatCache(policy, CAPACITY)
    assert policy.governor.name == "lru"
    cache.run(popular(0))
    assert policy.governor.name == "lfu"
    cache.run(drifting())
    assert policy.governor.name == "lru"


def test_over_a_change_of_the_workload_it_beats_each_of_its_policies() -> None:
    contents = list(chain(popular(0), drifting(), popular(1)))
    both = hits(AutoPolicy(("lru", "lfu")), contents)
    assert both > max(hits(LRUPolicy(), contents), hits(LFUPolicy(), contents))


@pytest.mark.parametrize("sample", [16, 1024])
def test_a_small_sample_will_do(sample: int) -> None:
    first, best = hits(LRUPolicy(), popular(0)), hits(LFUPolicy(), popular(0))
    assert hits(AutoPolicy(("lru", "lfu"), sample=sample), popular(0)) > 0.9 * best > 1.5 * first


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"policies": "lru+best"}, "lru, best; it takes lru"),
        ({"policies": ()}, "none"),
        ({"sample": 0}, "sample"),
        ({"policies": "lru+h2o"}, "lru, h2o; .* none that looks at attention"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, object], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        AutoPolicy(**wrong)  # type: ignore[arg-type]


def test_policies_are_a_list_in_the_settings_and_a_text_on_the_command_line() -> None:
    listed = load_plugins().create_policy("auto", {"auto": {"policies": ["lru", "arc"]}})
    written = PolicySource().create("auto:policies=lru+arc:sample=64")
    for policy in (listed, written):
        assert isinstance(policy, AutoPolicy)
        assert [member.name for member in policy._policies] == ["lru", "arc"]
