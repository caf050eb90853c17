"""Evictor: the candidates, and the policy behind a guard: whatever a plugin does, the cache goes on."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from openai_kv.cache.block import Block
from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy, PriorityPolicy
from openai_kv.metrics import EvictionStats, LookupStats
from openai_kv.request import RequestInfo

logger = logging.getLogger(__name__)
T = TypeVar("T")


class CacheObserver(Protocol):
    """Whoever wants to hear of it; must not raise."""

    def on_lookup(self, stats: LookupStats) -> None: ...

    def on_eviction(self, stats: EvictionStats) -> None: ...

    def on_plugin_error(self, plugin: str, hook: str) -> None: ...


class NullObserver:
    """Hears nothing."""

    def on_lookup(self, stats: LookupStats) -> None: ...

    def on_eviction(self, stats: EvictionStats) -> None: ...

    def on_plugin_error(self, plugin: str, hook: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Victim:
    """`policy` names who chose it."""

    block: Block
    policy: str


class LeastRecentlyUsed(PriorityPolicy):
    """Takes over where the configured policy fails."""

    name = "lru"

    def priority(self, block: BlockInfo) -> float:
        return block.last_accessed


class Evictor:
    """Keeps `candidates` (unreferenced, unpinned leaves) and asks the policy which one goes."""

    def __init__(self, policy: EvictionPolicy, observer: CacheObserver) -> None:
        self.policy = policy
        self.candidates: dict[BlockInfo, Block] = {}
        self._observer = observer
        self._logged: set[str] = set()
        self._fallback: LeastRecentlyUsed | None = None

    def start(self, cache: CacheInfo) -> None:
        self._guard("start", lambda: self.policy.start(cache), None)

    def on_insert(self, block: Block) -> None:
        self._guard("on_insert", lambda: self.policy.on_insert(block.info), None)

    def on_access(self, block: Block) -> None:
        self._guard("on_access", lambda: self.policy.on_access(block.info), None)
        if self._fallback is not None:
            self._fallback.on_access(block.info)

    def on_miss(self, info: RequestInfo, depth: int) -> None:
        self._guard("on_miss", lambda: self.policy.on_miss(info, depth), None)

    def on_request_finished(self, info: RequestInfo) -> None:
        self._guard("on_request_finished", lambda: self.policy.on_request_finished(info), None)

    def record_attention(self, block: Block, score: float) -> None:
        self._guard("record_attention", lambda: self.policy.record_attention(block.info, score), None)

    def admits(self, block: Block) -> bool:
        return self._guard("admit", lambda: bool(self.policy.admit(block.info)), True)

    def add(self, block: Block) -> None:
        """`block` is a candidate from now on."""
        self.candidates[block.info] = block
        self._guard("on_evictable", lambda: self.policy.on_evictable(block.info), None)
        if self._fallback is not None:
            self._fallback.on_evictable(block.info)

    def remove(self, block: Block) -> None:
        """`block` is none any more."""
        del self.candidates[block.info]
        self._guard("on_unevictable", lambda: self.policy.on_unevictable(block.info), None)
        if self._fallback is not None:
            self._fallback.on_unevictable(block.info)

    def forget(self, block: Block) -> None:
        """The content of `block` is about to go."""
        self.candidates.pop(block.info, None)
        self._guard("on_evict", lambda: self.policy.on_evict(block.info), None)
        if self._fallback is not None:
            self._fallback.on_evict(block.info)

    def victim(self) -> Victim:
        """The policy's choice; the least recently used candidate if that fails. There is a candidate."""
        assert self.candidates, "no block can be evicted"
        block = self._guard("select_victim", self._ask, None)
        if block is not None:
            return Victim(block, self.policy.name)
        if self._fallback is None:
            self._fallback = self._start_fallback()
        chosen = self._fallback.select_victim(self.candidates.keys())
        return Victim(self.candidates[chosen], self._fallback.name)

    def _ask(self) -> Block | None:
        answer = self.policy.select_victim(self.candidates.keys())
        if answer not in self.candidates:
            raise LookupError(f"select_victim answered {answer!r}, which is not among the candidates")
        return self.candidates[answer]

    def _start_fallback(self) -> LeastRecentlyUsed:
        fallback = LeastRecentlyUsed()
        for info in self.candidates:
            fallback.on_evictable(info)
        return fallback

    def _guard(self, hook: str, call: Callable[[], T], default: T) -> T:
        """Every call of a policy comes through here. Each failure is reported, each hook's first one logged."""
        try:
            return call()
        except (Exception, SystemExit):
            if hook not in self._logged:
                self._logged.add(hook)
                logger.exception(
                    "eviction policy %s failed in %s; further failures are only counted", self.policy.name, hook
                )
            self._observer.on_plugin_error(self.policy.name, hook)
            return default
