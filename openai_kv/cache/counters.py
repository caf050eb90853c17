"""Running totals of the cache, since the start of the process."""

from collections import Counter
from dataclasses import dataclass, field

from openai_kv.cache.hit import CacheHit, HitKind
from openai_kv.request import RequestInfo

HIT_KINDS = (HitKind.EXACT, HitKind.RADIX, HitKind.PARTIAL)


def _zeros() -> dict[str, int]:
    return {kind.value: 0 for kind in HIT_KINDS}


@dataclass(slots=True)
class CacheCounters:
    """Requests by kind of their first hit, tokens of those hits, evicted blocks by policy, duplicate blocks, and
    `expired` ones that nobody used for a day. `promoted`: tokens among the hit ones that came from tiers, by location.
    """

    hits: dict[str, int] = field(default_factory=_zeros)
    hit_tokens: dict[str, int] = field(default_factory=_zeros)
    misses: int = 0
    prompt_tokens: int = 0
    evictions: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    expired: int = 0
    promoted: Counter[str] = field(default_factory=Counter)

    def count_lookup(self, info: RequestInfo, hit: CacheHit) -> None:
        self.prompt_tokens += info.num_prompt_tokens
        if hit.kind is HitKind.MISS:
            self.misses += 1
            return
        self.hits[hit.kind.value] += 1
        self.hit_tokens[hit.kind.value] += hit.num_tokens
