from dataclasses import replace
from pathlib import Path

import pytest

from openai_kv.server.admin import groups
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from tests.harness import Run, build_engine, fake_runner, make_request
from tests.server.serving import SHAPE, check_error, site

BODY = {"prompt_token_ids": list(range(1, 11)), "max_tokens": 4, "temperature": 0}
STATS = {
    "model", "block_size", "dtype", "policy", "blocks", "utilization", "token_capacity", "tree_nodes", "exact_entries",
    "namespaces", "memory_pressure", "waste", "bytes_total", "bytes_used", "active_requests", "groups", "tiers",
    "hit_count", "miss_count", "hit_rate", "hits", "prompt_tokens", "hit_tokens", "token_hit_rate", "eviction_count",
    "promoted_tokens",
    "evictions_by_policy", "expired_blocks", "preemption_count", "attention_read_bytes", "pins", "since",
}  # fmt: skip


async def test_cache_stats_and_reset() -> None:
    async with site() as server:
        fresh = (await server.client.get("/cache/stats")).json()
        assert set(fresh) == STATS
        assert fresh["blocks"]["free"] == fresh["blocks"]["total"] == SHAPE.num_blocks
        assert fresh["hit_rate"] == fresh["token_hit_rate"] == fresh["waste"] == 0
        assert (fresh["tiers"], fresh["pins"], fresh["policy"]) == ([], 0, {"name": "lru", "options": {}})
        await server.post("/generate", BODY)
        await server.post("/generate", BODY)
        stats = (await server.client.get("/cache/stats")).json()
        blocks = stats["blocks"]
        assert blocks["free"] + blocks["cached"] + blocks["referenced"] == blocks["total"]
        assert blocks["used"] == blocks["cached"] > 0 == blocks["referenced"]
        assert stats["utilization"] == blocks["used"] / blocks["total"]
        assert stats["bytes_used"] == blocks["used"] * 1024
        assert (stats["hit_count"], stats["miss_count"], stats["hit_rate"]) == (1, 1, 0.5)
        assert stats["hits"] == {"exact": 1, "radix": 0, "partial": 0}
        assert (stats["prompt_tokens"], stats["hit_tokens"], stats["token_hit_rate"]) == (20, 10, 0.5)
        rows = (10 + 11 + 12 + 13) + (11 + 12 + 13)  # the second time the cache has the prompt and its last state
        assert stats["attention_read_bytes"] == rows * 1024 // SHAPE.block_size
        assert stats["groups"] == [{"name": "full", "layers": 1, "blocks": blocks}]

        other = await server.post("/cache/reset", {"tiers": ["host"]})
        assert other.json() == {"success": True, "freed_blocks": 0, "kept_blocks": 0}
        done = (await server.client.post("/cache/reset")).json()
        assert done == {"success": True, "freed_blocks": blocks["used"], "kept_blocks": 0}
        after = (await server.client.get("/cache/stats")).json()
        assert after["blocks"]["free"] == SHAPE.num_blocks and after["hit_count"] == 1
        assert (await server.post("/generate", BODY)).json()["cache_hit_tokens"] == 0


async def test_tiers_are_told_and_reset(tmp_path: Path) -> None:
    async with site(tiers=[DiskTier(str(tmp_path))], seconds_a_token=1.0) as server:
        await server.post("/generate", BODY)
        await server.post("/cache/reset", {"tiers": ["device"]})
        again = (await server.post("/generate", BODY)).json()
        assert again["cache_hit_tokens"] == 8 and again["cache_hit_kind"] == "radix"
        assert again["cache_hit_tiers"] == {"device": 0, "host": 0, "disk": 8}
        stats = (await server.client.get("/cache/stats")).json()
        assert (stats["hit_tokens"], stats["promoted_tokens"]) == (8, {"disk": 8})
        (tier,) = stats["tiers"]
        assert (tier["name"], tier["plugin"], tier["available"], tier["promoted_blocks"]) == ("disk", "disk", True, 2)
        assert tier["content"] == "kv"
        assert tier["problems"] == {} and tier["bytes_total"] == 10 * 2**30
        assert (await server.post("/cache/reset", {})).json()["success"]
        assert (await server.post("/generate", BODY)).json()["cache_hit_tokens"] == 0


async def test_a_shared_tier_is_reset_only_if_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostTier, "location", "remote")
    monkeypatch.setattr(HostTier, "demotion", "write-through")
    async with site(tiers=[HostTier()], seconds_a_token=1.0) as server:
        await server.post("/generate", BODY)
        await server.client.post("/cache/reset")
        assert (await server.post("/generate", BODY)).json()["cache_hit_tokens"] == 8
        await server.post("/cache/reset", {"tiers": ["device", "remote"]})
        assert (await server.post("/generate", BODY)).json()["cache_hit_tokens"] == 0


def test_a_window_group_is_shown_beside_the_full_one() -> None:
    shape = replace(SHAPE, num_window_blocks=33)
    run = Run(build_engine(fake_runner(shape, window=8, num_window_layers=3, num_layers=4), shape))
    run.generate(make_request(range(30), 1))
    cache, info = run.engine.stats().cache, run.engine.runner.info
    full, window = groups(cache, info)
    assert (full["name"], full["layers"], full["blocks"]["total"]) == ("full", 1, SHAPE.num_blocks)
    assert (window["name"], window["layers"]) == ("window_8", 3)
    counts = {"total": 32, "free": 24, "used": 8, "cached": 8, "referenced": 0, "pinned": 0}
    assert window["blocks"] == counts


async def test_memory_pressure_is_what_can_not_go() -> None:
    async with site() as server:
        await server.post("/generate", BODY)
        cached = (await server.client.get("/cache/stats")).json()
        assert cached["blocks"]["cached"] > 0 == cached["memory_pressure"], "what is only cached goes when need be"
        pin = (await server.post("/cache/pin", {"prompt_token_ids": list(range(20))})).json()
        stats = (await server.client.get("/cache/stats")).json()
        assert stats["blocks"]["pinned"] == pin["blocks"] == 5
        assert stats["memory_pressure"] == 5 / SHAPE.num_blocks


async def test_reset_checks_its_body() -> None:
    async with site() as server:
        check_error(await server.post("/cache/reset", {"tiers": ["tape"]}), 400, "invalid_value", "tiers[0]")
        check_error(await server.post("/cache/reset", {"pinned": True}), 400, "unknown_parameter", "pinned")
