"""GET /cache/stats, POST /cache/reset, GET /plugins."""

from collections.abc import Mapping
from typing import Any

from openai_kv.engine.engine import ALL_TIERS, OWN_TIERS, EngineStats
from openai_kv.metrics import CacheStats, TierStats
from openai_kv.outputs import ModelInfo
from openai_kv.server.call import Call
from openai_kv.server.context import PluginRow, ServerContext
from openai_kv.server.fields import Array, Boolean, Choice, Object

RESET_BODY = Object({"tiers": Array(Choice(ALL_TIERS)), "include_pinned": Boolean()})


async def cache_stats(call: Call) -> None:
    call.context.require_ready()
    stats = await call.context.engine.stats()
    await call.answer(describe(call.context, stats))


def describe(context: ServerContext, stats: EngineStats) -> dict[str, Any]:
    """Counts since the process started."""
    cache, info = stats.cache, context.engine.info
    return {
        "model": context.model_names[0],
        "block_size": cache.block_size,
        "dtype": info.kv_cache_dtype,
        "policy": describe_policy(context),
        "blocks": block_counts(cache),
        "token_capacity": cache.total * cache.block_size,
        "tree_nodes": cache.tree_nodes,
        "exact_entries": cache.exact_entries,
        "namespaces": cache.namespaces,
        **memory(cache, info),
        "active_requests": stats.running,
        "groups": groups(cache, info),
        "tiers": [describe_tier(tier, info) for tier in cache.tiers],
        **hits(cache),
        "eviction_count": cache.eviction_count,
        "evictions_by_policy": dict(cache.evictions_by_policy),
        "expired_blocks": cache.expired_blocks,
        "preemption_count": stats.preemptions,
        "attention_read_bytes": stats.attention_read_bytes,
        "pins": cache.pins,
        "since": context.start_time,
    }


def describe_policy(context: ServerContext) -> dict[str, Any]:
    name = context.settings.cache.eviction_policy
    options: Mapping[str, Any] = next((plugin.options for plugin in context.plugins if plugin.name == name), {})
    return {"name": name, "options": dict(options)}


def block_counts(cache: CacheStats) -> dict[str, int]:
    return {
        "total": cache.total,
        "free": cache.free,
        "used": cache.used,
        "cached": cache.cached,
        "referenced": cache.referenced,
        "soft_pinned": cache.soft_pinned,
        "pinned": cache.pinned,
    }


def groups(cache: CacheStats, info: ModelInfo) -> list[dict[str, Any]]:
    """The layers that keep every token (there may be none), then those that keep a window."""
    full = {"name": "full", "layers": info.num_layers - info.num_window_layers, "blocks": block_counts(cache)}
    if cache.window is None:
        return [full]
    counts = cache.window
    blocks = {name: getattr(counts, name) for name in ("total", "free", "used", "cached", "referenced", "pinned")}
    return [full, {"name": f"window_{info.window}", "layers": info.num_window_layers, "blocks": blocks}]


def memory(cache: CacheStats, info: ModelInfo) -> dict[str, float]:
    slots = cache.referenced * cache.block_size
    window_total, window_used = (cache.window.total, cache.window.used) if cache.window is not None else (0, 0)
    return {
        "utilization": ratio(cache.used, cache.total),
        "memory_pressure": cache.memory_pressure,
        "waste": ratio(slots - cache.referenced_slots_used, slots),
        "bytes_total": cache.total * info.block_bytes + window_total * info.window_block_bytes,
        "bytes_used": cache.used * info.block_bytes + window_used * info.window_block_bytes,
    }


def hits(cache: CacheStats) -> dict[str, Any]:
    hit_tokens = sum(cache.hit_tokens.values())
    return {
        "hit_count": cache.hit_count,
        "miss_count": cache.miss_count,
        "hit_rate": ratio(cache.hit_count, cache.hit_count + cache.miss_count),
        "hits": dict(cache.hits),
        "prompt_tokens": cache.prompt_tokens,
        "hit_tokens": hit_tokens,
        "token_hit_rate": ratio(hit_tokens, cache.prompt_tokens),
        "promoted_tokens": dict(cache.promoted_tokens),
    }


def describe_tier(tier: TierStats, info: ModelInfo) -> dict[str, Any]:
    """Of other models, too, that share it. Blocks are records here: where there are two groups a block has two."""
    sizes = [size for size in (info.stored_block_bytes, info.window_block_bytes) if size]
    return {
        "name": tier.name,
        "plugin": tier.plugin,
        "content": "hidden_states" if info.hidden_block_bytes else "kv",
        "available": tier.available,
        "blocks_total": None if tier.max_bytes is None else tier.max_bytes * len(sizes) // sum(sizes),
        "blocks_used": tier.blocks,
        "bytes_total": tier.max_bytes,
        "bytes_used": tier.num_bytes,
        "demoted_blocks": tier.demoted_blocks,
        "promoted_blocks": tier.promoted_blocks,
        "problems": dict(tier.problems),
    }


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


async def cache_reset(call: Call) -> None:
    """An empty body is `{}`, and means the tiers that no other server shares."""
    call.body = call.body or b"{}"
    body = await call.parse(lambda _: RESET_BODY)
    tiers, pinned = body.get("tiers", OWN_TIERS), body.get("include_pinned", False)
    result = await call.context.engine.reset_cache(include_pinned=pinned, tiers=tiers)
    await call.answer({"success": True, "freed_blocks": result.freed_blocks, "kept_blocks": result.kept_blocks})


async def plugins(call: Call) -> None:
    await call.answer({"plugins": [describe_plugin(plugin) for plugin in call.context.plugins]})


def describe_plugin(plugin: PluginRow) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "version": plugin.version,
        "source": plugin.source,
        "hooks": list(plugin.hooks),
        "active": plugin.active,
        "options": dict(plugin.options),
    }
