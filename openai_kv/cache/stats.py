"""What the cache tells of itself."""

from openai_kv.cache.block_tables import BlockTables
from openai_kv.cache.store import BlockStore
from openai_kv.metrics import CacheStats


def cache_stats(store: BlockStore, tables: BlockTables) -> CacheStats:
    """Counts of now and since the start; O(1)."""
    pool, counters, block_size = store.pool, store.counters, store.tree.block_size
    return CacheStats(
        total=pool.num_blocks,
        free=pool.num_free,
        cached=pool.num_cached,
        referenced=pool.num_referenced,
        block_size=block_size,
        referenced_slots_used=pool.num_referenced * block_size - tables.num_empty_slots,
        tree_nodes=store.tree.num_nodes,
        exact_entries=len(store.exact.entries),
        namespaces=len(store.tree.roots),
        hits=dict(counters.hits),
        hit_tokens=dict(counters.hit_tokens),
        miss_count=counters.misses,
        prompt_tokens=counters.prompt_tokens,
        evictions_by_policy=dict(counters.evictions),
        duplicate_blocks=counters.duplicates,
        soft_pinned=pool.num_soft_pinned,
        pinned=pool.num_pinned,
        pins=len(store.pins.by_id),
        expired_blocks=counters.expired,
        pinned_idle=pool.num_pinned_idle,
        promoted_tokens=dict(counters.promoted),
    )
