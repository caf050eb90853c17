"""GET /cache/tree and /cache/blocks: what the cache holds, between two steps."""

import asyncio
import re
from typing import Any

from openai_kv.engine.engine import Engine
from openai_kv.metrics import CacheStats
from openai_kv.server.admin import block_counts
from openai_kv.server.call import Call
from openai_kv.server.fields import Choice, Integer, Notes
from openai_kv.server.violations import wrong_value
from openai_kv.tokenizer import Tokenizer

STATES = ("free", "cached", "referenced", "soft_pinned", "pinned")
SHOWN_CHARACTERS = 64


async def cache_tree(call: Call) -> None:
    call.context.require_ready()
    root, depth = query_number(call, "root", 0), query_number(call, "depth", 4, 64)
    limit = query_number(call, "limit", 1000, 10_000, minimum=1)
    expose = call.context.settings.cache.expose_text

    def read(engine: Engine) -> tuple[list[dict[str, Any]] | None, CacheStats]:
        return engine.snapshot().nodes(root, depth, limit, with_tokens=expose), engine.stats().cache

    rows, cache = await call.context.engine.call(read)
    if rows is None:
        raise wrong_value("root", "the id of a node", root)
    if expose:
        await asyncio.to_thread(show_text, call.context.get_tokenizer(), rows)
    answer = {"root": root, "block_size": cache.block_size, "total_nodes": cache.tree_nodes}
    await call.answer({**answer, "truncated": is_truncated(rows, root, cache.tree_nodes), "nodes": rows})


def is_truncated(rows: list[dict[str, Any]], root: int, total: int) -> bool:
    """Whether a node below the root is left out."""
    below = total if root == 0 else 1 + sum(row["children"] for row in rows)
    return len(rows) < below


def show_text(tokenizer: Tokenizer, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        row["text"] = tokenizer.decode(row.pop("token_ids"), skip_special_tokens=False)[:SHOWN_CHARACTERS]


async def cache_blocks(call: Call) -> None:
    call.context.require_ready()
    offset, limit = query_number(call, "offset", 0), query_number(call, "limit", 256, 4096, minimum=1)
    state = call.query.get("state") or None
    if state is not None:
        Choice(STATES)(state, "state", Notes())

    def read(engine: Engine) -> tuple[list[dict[str, Any]], CacheStats]:
        return engine.snapshot().blocks(state, offset, limit), engine.stats().cache

    rows, cache = await call.context.engine.call(read)
    total = block_counts(cache)[state or "total"]
    following = offset + len(rows) if rows and offset + len(rows) < total else None
    await call.answer({"total": total, "offset": offset, "limit": limit, "next_offset": following, "blocks": rows})


def query_number(call: Call, name: str, default: int, maximum: int | None = None, *, minimum: int = 0) -> int:
    """A query parameter; raises ParameterError."""
    text = call.query.get(name, "")
    if not text:
        return default
    if re.fullmatch(r"-?[0-9]{1,18}", text) is None:
        raise wrong_value(name, "an integer", text)
    return Integer(minimum, maximum)(int(text), name, Notes())
