"""auto: several policies at once; the one that would have hit most lately governs.

Each hears of everything, so that any can take over at once. Who is best is seen in small shadow caches, one a policy,
fed with a sample of what is looked up (SHARDS, Waldspurger et al. FAST 2015; miniature simulation, ATC 2017).
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from openai_kv.cache.contest import Contest
from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.default_plugins.arc import ARCPolicy
from openai_kv.default_plugins.fifo import FIFOPolicy
from openai_kv.default_plugins.gdsf import GDSFPolicy
from openai_kv.default_plugins.learned import LearnedPolicy
from openai_kv.default_plugins.lfu import LFUPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.default_plugins.s3_fifo import S3FIFOPolicy
from openai_kv.default_plugins.sieve import SievePolicy
from openai_kv.default_plugins.sink_lru import SinkLRUPolicy
from openai_kv.default_plugins.slru import SLRUPolicy
from openai_kv.default_plugins.ttl import TTLPolicy
from openai_kv.default_plugins.wa import WorkloadAwarePolicy
from openai_kv.hookspecs import hookimpl
from openai_kv.request import RequestInfo

MEMBERS: tuple[type[EvictionPolicy], ...] = (
    LRUPolicy,
    GDSFPolicy,
    ARCPolicy,
    S3FIFOPolicy,
    SLRUPolicy,
    SievePolicy,
    LFUPolicy,
    FIFOPolicy,
    WorkloadAwarePolicy,
    LearnedPolicy,
    SinkLRUPolicy,
    TTLPolicy,
)

DEFAULT = ("lru", "arc", "s3_fifo", "learned")


def members(names: Iterable[str]) -> list[EvictionPolicy]:
    """A new policy for each name. Raises ValueError if one can't be a member, or there is none."""
    known = {policy.name: policy for policy in MEMBERS}
    chosen = list(names)
    if not chosen or not known.keys() >= set(chosen):
        taken = f"it takes {', '.join(known)}, and none that looks at attention: a shadow has none"
        raise ValueError(f"policies has {', '.join(chosen) or 'none'}; {taken}")
    return [known[name]() for name in chosen]


def hooks(policies: Iterable[EvictionPolicy], name: str) -> tuple[Callable[..., Any], ...]:
    """The hook `name` of those that do anything in it."""
    base = getattr(EvictionPolicy, name)
    return tuple(getattr(policy, name) for policy in policies if getattr(type(policy), name) is not base)


class AutoPolicy(EvictionPolicy):
    """`policies`: names, or one text with + between; the first governs at the start. `sample`: blocks in each shadow.

    A decision costs what the governing policy's does; every other event costs as much as with all of them.
    """

    name = "auto"

    def __init__(self, policies: tuple[str, ...] | str = DEFAULT, sample: int = 1024) -> None:
        names = policies.split("+") if isinstance(policies, str) else policies
        if sample < 1:
            raise ValueError("sample is below 1")
        self._policies, self._shadowed, self._sample = members(names), members(names), sample
        self._insert, self._access = hooks(self._policies, "on_insert"), hooks(self._policies, "on_access")
        self._evictable = hooks(self._policies, "on_evictable")
        self._unevictable = hooks(self._policies, "on_unevictable")
        self._evict = hooks(self._policies, "on_evict")
        everyone = self._policies + self._shadowed
        self._miss, self._finished = hooks(everyone, "on_miss"), hooks(everyone, "on_request_finished")

    @property
    def governor(self) -> EvictionPolicy:
        """Who decides now."""
        return self._policies[self._contest.leader]

    def start(self, cache: CacheInfo) -> None:
        for policy in self._policies:
            policy.start(cache)
        self._contest = Contest(self._shadowed, cache, self._sample)

    def on_insert(self, block: BlockInfo) -> None:
        for hook in self._insert:
            hook(block)
        self._contest.see(block)

    def on_access(self, block: BlockInfo) -> None:
        for hook in self._access:
            hook(block)
        self._contest.see(block)

    def on_miss(self, info: RequestInfo, depth: int) -> None:
        for hook in self._miss:
            hook(info, depth)

    def on_evictable(self, block: BlockInfo) -> None:
        for hook in self._evictable:
            hook(block)

    def on_unevictable(self, block: BlockInfo) -> None:
        for hook in self._unevictable:
            hook(block)

    def on_evict(self, block: BlockInfo) -> None:
        for hook in self._evict:
            hook(block)
        self._contest.forget(block)

    def on_request_finished(self, info: RequestInfo) -> None:
        for hook in self._finished:
            hook(info)

    def admit(self, block: BlockInfo) -> bool:
        return self.governor.admit(block)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        return self.governor.select_victim(candidates)


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(AutoPolicy)
