from typing import Any

import pytest

from openai_kv.cache import snapshot
from tests.server.serving import SHAPE, Site, check_error, site

NODE = {
    "id", "parent", "depth_tokens", "tokens", "blocks", "children", "hits", "references", "age_seconds", "idle_seconds",
    "tier", "pin", "expires_at", "namespace",
}  # fmt: skip
BLOCK = {
    "block_id", "state", "tokens", "ref_count", "hit_count", "is_first_block", "depth_tokens", "age_seconds",
    "idle_seconds", "pin", "tier", "namespace",
}  # fmt: skip
PREFIX = list(range(97, 105))


async def fill(server: Site) -> dict[str, Any]:
    """Two branches from two shared blocks, one of them in another namespace too; the prefix is pinned."""
    for ids, salt in (([*PREFIX, *[110] * 5], None), ([*PREFIX, *[120] * 9], None), ([*PREFIX, 1, 2], "salt")):
        body = {"prompt_token_ids": ids, "max_tokens": 0, "cache_salt": salt}
        assert (await server.post("/generate", body)).status_code == 200
    await server.post(
        "/generate", {"prompt_token_ids": [50] * 6, "max_tokens": 0, "prompt_cache_options": {"ttl": "1h"}}
    )
    pin: dict[str, Any] = (await server.post("/cache/pin", {"prompt_token_ids": PREFIX, "ttl": "2h"})).json()
    return pin


async def get(server: Site, path: str) -> dict[str, Any]:
    answer = await server.client.get(path)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def pages(server: Site, query: str) -> list[dict[str, Any]]:
    """The rows of all pages, one after the other."""
    rows, offset = list[dict[str, Any]](), 0
    while offset is not None:
        page = await get(server, f"/cache/blocks?{query}&offset={offset}")
        rows, offset = [*rows, *page["blocks"]], page["next_offset"]
    return rows


async def test_the_tree() -> None:
    async with site(cache_clock=lambda: 100.0) as server:
        pin = await fill(server)
        tree = await get(server, "/cache/tree")
        nodes = tree["nodes"]
        assert (tree["root"], tree["block_size"], tree["total_nodes"], tree["truncated"]) == (0, 4, 5, False)
        assert all(set(node) == NODE and node["tier"] == "device" for node in nodes)
        shared = next(node for node in nodes if node["children"] == 2)
        children = [node for node in nodes if node["parent"] == shared["id"]]
        assert (shared["parent"], shared["depth_tokens"], shared["tokens"], shared["blocks"]) == (0, 0, 8, 2)
        assert (shared["pin"], shared["expires_at"]) == ("hard", pin["expires_at"])
        assert sorted((node["depth_tokens"], node["tokens"], node["pin"]) for node in children) == [
            (8, 5, None),
            (8, 9, None),
        ]
        (soft,) = [node for node in nodes if node["pin"] == "soft"]
        assert (soft["tokens"], soft["expires_at"] - pin["created"]) == (6, 3600)
        assert len({node["namespace"] for node in nodes}) == 2 and len(shared["namespace"]) == 8
        below = await get(server, f"/cache/tree?root={shared['id']}&depth=1")
        assert below["nodes"] == [shared, *children] and not below["truncated"]
        for query in (f"root={shared['id']}&depth=0", "depth=1", "limit=2", "depth=0"):
            assert (await get(server, f"/cache/tree?{query}"))["truncated"]
        assert (await get(server, "/cache/tree?depth=1&limit=2"))["nodes"] == nodes[:2]


async def test_the_blocks() -> None:
    async with site(cache_clock=lambda: 100.0) as server:
        await fill(server)
        whole = await get(server, "/cache/blocks?limit=4096")
        rows = whole["blocks"]
        assert (whole["total"], whole["next_offset"]) == (SHAPE.num_blocks, None)
        assert [row["block_id"] for row in rows] == list(range(SHAPE.num_blocks))
        assert all(set(row) == BLOCK for row in rows)
        counts = (await get(server, "/cache/stats"))["blocks"]
        for state in ("free", "cached", "referenced", "soft_pinned", "pinned"):
            page = await get(server, f"/cache/blocks?state={state}&limit=2")
            assert page["total"] == counts[state] and len(page["blocks"]) == min(2, counts[state])
            assert all(row in rows for row in page["blocks"])
        assert counts["pinned"] == len([row for row in rows if row["pin"] == "hard"]) == 2
        assert counts["soft_pinned"] == len([row for row in rows if row["pin"] == "soft"]) == 2
        cached = [row for row in rows if row["state"] == "cached"]
        assert await pages(server, "state=cached&limit=3") == cached and len(cached) > 6
        assert (await get(server, "/cache/blocks?offset=9999"))["blocks"] == []


@pytest.mark.parametrize("expose", [True, False])
async def test_text_is_shown_only_where_it_may_be(expose: bool) -> None:
    async with site(cache__expose_text=expose) as server:
        await fill(server)
        texts = [node.get("text") for node in (await get(server, "/cache/tree"))["nodes"]]
        known = server.context.get_tokenizer().decode(PREFIX)
        assert (known in texts) if expose else (set(texts) == {None})


async def test_what_is_refused() -> None:
    async with site() as server:
        for query, code, param in (
            ("tree?root=77", "invalid_value", "root"),
            ("tree?root=99999", "invalid_value", "root"),
            ("tree?depth=65", "integer_above_max_value", "depth"),
            ("tree?limit=10001", "integer_above_max_value", "limit"),
            ("tree?root=-1", "integer_below_min_value", "root"),
            ("tree?depth=x", "invalid_value", "depth"),
            ("blocks?limit=4097", "integer_above_max_value", "limit"),
            ("blocks?state=lost", "invalid_value", "state"),
            ("blocks?offset=1.5", "invalid_value", "offset"),
        ):
            check_error(await server.client.get(f"/cache/{query}"), 400, code, param)


async def test_only_the_admin_may_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice")
    monkeypatch.setenv("OPENAI_KV_ADMIN_KEY", "root")
    async with site(headers={"authorization": "Bearer alice"}) as server:
        for path in ("/cache/tree", "/cache/blocks"):
            check_error(await server.client.get(path), 403, "admin_key_required")


async def test_a_step_never_waits_for_a_long_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MAX_SECONDS", -1.0)
    async with site() as server:
        await fill(server)
        tree, page = await get(server, "/cache/tree"), await get(server, "/cache/blocks?offset=3")
        assert (len(tree["nodes"]), tree["truncated"]) == (1, True)
        assert ([row["block_id"] for row in page["blocks"]], page["next_offset"]) == ([3], 4)
        pinned = await get(server, "/cache/blocks?state=pinned&offset=100")
        assert (pinned["total"], pinned["blocks"], pinned["next_offset"]) == (2, [], 101)
        assert len(await pages(server, "state=pinned")) == 2
