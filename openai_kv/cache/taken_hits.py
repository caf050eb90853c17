"""TakenHits: hits that requests were admitted with are used, counted and told."""

from collections.abc import Mapping
from dataclasses import replace

from openai_kv.cache.eviction import CacheObserver
from openai_kv.cache.hit import CacheHit, HitKind
from openai_kv.cache.store import BlockStore
from openai_kv.metrics import LookupStats
from openai_kv.request import RequestInfo


class TakenHits:
    """Each request's hit is counted once, when it is known in full."""

    def __init__(self, store: BlockStore, observer: CacheObserver) -> None:
        self._store = store
        self._observer = observer

    def take(self, info: RequestInfo, hit: CacheHit, *, count: bool) -> None:
        """One more reference to each whole block; `count` as KVCacheManager.admit has it."""
        if count:
            self._store.counters.count_lookup(info, hit)
            self._tell_miss(info, hit)
        self._store.share(hit.blocks)
        gaps = self._store.access(info, hit.matched)
        self._store.pins.touch(hit.matched, hit.num_tokens)
        self._observer.on_lookup(LookupStats(info, hit.kind, hit.num_tokens, gaps, resumed=not count))
        if hit.hidden_slot is not None:
            self._store.exact.touch(hit.hidden_slot)

    def complete(self, info: RequestInfo, hit: CacheHit, promoted: Mapping[str, int], *, count: bool) -> CacheHit:
        """`hit`, which was taken without being counted, with what tiers have added; `count` it now."""
        more = sum(promoted.values())
        found = replace(hit, kind=HitKind.RADIX, num_tokens=hit.num_tokens + more) if more else hit
        if count:
            self._store.counters.count_lookup(info, found)
            self._store.counters.promoted.update(promoted)
            self._tell_miss(info, hit)
            self._observer.on_lookup(LookupStats(info, found.kind, found.num_tokens, (), resumed=False))
        return found

    def _tell_miss(self, info: RequestInfo, hit: CacheHit) -> None:
        if hit.num_tokens < info.num_prompt_tokens - 1 and not info.retention.bypasses:
            self._store.evictor.on_miss(info, hit.num_tokens)
