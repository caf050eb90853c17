"""WatchedPolicy: stands between the cache and a policy, and sees what the cache's guard would swallow."""

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from time import perf_counter
from typing import TypeVar

from openai_kv.cache.block import BlockView
from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.request import RequestInfo

T = TypeVar("T")


class PolicyFailure(AssertionError):
    """The policy breaks the contract; the message says where."""


class CountedSet(AbstractSet[BlockInfo]):
    """The candidates; counts how many are looked at one after the other."""

    def __init__(self, candidates: AbstractSet[BlockInfo]) -> None:
        self._candidates = candidates
        self.examined = 0

    def __contains__(self, block: object) -> bool:
        return block in self._candidates

    def __len__(self) -> int:
        return len(self._candidates)

    def __iter__(self) -> Iterator[BlockInfo]:
        for block in self._candidates:
            self.examined += 1
            yield block


class WatchedPolicy(EvictionPolicy):
    """Passes everything on; keeps the first failure, the keys of what was evicted, and what deciding cost."""

    name = "watched"

    def __init__(self, policy: EvictionPolicy) -> None:
        vars(self).update(name=policy.name, needs_attention=policy.needs_attention)
        self.policy = policy
        self.evicted: list[int] = []
        self.decisions = self.examined = 0
        self.seconds = 0.0
        self._failure: PolicyFailure | None = None

    def check(self) -> None:
        """Raises PolicyFailure if a hook failed since the start."""
        if self._failure is not None:
            raise self._failure

    def start(self, cache: CacheInfo) -> None:
        self._call("start", lambda: self.policy.start(cache), None)

    def on_insert(self, block: BlockInfo) -> None:
        self._call("on_insert", lambda: self.policy.on_insert(block), None)

    def on_access(self, block: BlockInfo) -> None:
        self._call("on_access", lambda: self.policy.on_access(block), None)

    def on_miss(self, info: RequestInfo, depth: int) -> None:
        self._call("on_miss", lambda: self.policy.on_miss(info, depth), None)

    def on_evictable(self, block: BlockInfo) -> None:
        self._call("on_evictable", lambda: self.policy.on_evictable(block), None)

    def on_unevictable(self, block: BlockInfo) -> None:
        self._call("on_unevictable", lambda: self.policy.on_unevictable(block), None)

    def on_evict(self, block: BlockInfo) -> None:
        self.evicted.append(block.key)
        self._call("on_evict", lambda: self.policy.on_evict(block), None)

    def admit(self, block: BlockInfo) -> bool:
        return self._call("admit", lambda: self.policy.admit(block), True)

    def on_request_finished(self, info: RequestInfo) -> None:
        self._call("on_request_finished", lambda: self.policy.on_request_finished(info), None)

    def record_attention(self, block: BlockInfo, score: float) -> None:
        self._call("record_attention", lambda: self.policy.record_attention(block, score), None)

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        counted = CountedSet(candidates)
        victim = self._call("select_victim", lambda: self.policy.select_victim(counted), None)
        self.decisions += 1
        self.examined += counted.examined
        if isinstance(victim, BlockView) and victim in candidates:
            return victim
        self._fail(f"select_victim answered {victim!r}, {explain(victim)}")
        return next(iter(candidates))

    def _call(self, hook: str, call: Callable[[], T], default: T) -> T:
        """`default` after a failure: it is kept here, and the cache's guard need not write it into the log as well."""
        begin = perf_counter()
        try:
            return call()
        except (Exception, SystemExit) as error:
            self._fail(f"{hook} raised {type(error).__name__}: {error}", error)
            return default
        finally:
            self.seconds += perf_counter() - begin

    def _fail(self, problem: str, cause: BaseException | None = None) -> None:
        if self._failure is None:
            self._failure = PolicyFailure(f"{self.policy.name}: {problem}")
            self._failure.__cause__ = cause


def explain(victim: object) -> str:
    """Why it can't go."""
    if not isinstance(victim, BlockView):
        return "which is no block"
    if victim.ref_count:
        return f"which is in use: running requests hold {victim.ref_count} references"
    return "which is not among the candidates: pinned, continued by another block, or gone"
