"""GET /cache/tree and /cache/blocks: what the cache holds, between two steps."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from openai_kv.engine.engine import Engine
from openai_kv.metrics import CacheStats
from openai_kv.server.admin import block_counts
from openai_kv.server.call import Call
from openai_kv.server.fields import Check, Choice, Integer, Notes
from openai_kv.server.violations import wrong_value
from openai_kv.tokenizer import Tokenizer

STATES = ("free", "cached", "referenced", "soft_pinned", "pinned")
SHOWN_CHARACTERS = 64
TREE_QUERY: Mapping[str, Check] = {"root": Integer(0), "depth": Integer(0, 64), "limit": Integer(1, 10_000)}
BLOCKS_QUERY: Mapping[str, Check] = {"offset": Integer(0), "limit": Integer(1, 4096), "state": Choice(STATES)}


async def cache_tree(call: Call) -> None:
    call.context.require_ready()
    query = {"root": 0, "depth": 4, "limit": 1000, **read_query(call, TREE_QUERY)}
    root, depth, limit = query["root"], query["depth"], query["limit"]
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
    query = {"offset": 0, "limit": 256, "state": None, **read_query(call, BLOCKS_QUERY)}
    offset, limit, state = query["offset"], query["limit"], query["state"]

    page, cache = await call.context.engine.call(
        lambda engine: (engine.snapshot().blocks(state, offset, limit), engine.stats().cache)
    )
    answer = {"total": block_counts(cache)[state or "total"], "offset": offset, "limit": limit}
    await call.answer({**answer, "next_offset": page.following, "blocks": page.rows})


def read_query(call: Call, checks: Mapping[str, Check]) -> dict[str, Any]:
    """The query parameters that `checks` knows and the client gave; raises ParameterError."""
    given = {name: call.query[name] for name in checks if call.query.get(name)}
    return {name: read_value(text, name, checks[name]) for name, text in given.items()}


def read_value(text: str, name: str, check: Check) -> Any:
    if not isinstance(check, Integer):
        return check(text, name, Notes())
    if re.fullmatch(r"-?[0-9]{1,18}", text) is None:
        raise wrong_value(name, "an integer", text)
    return check(int(text), name, Notes())
