"""find_hit: the longest cached prefix that can be used."""

from openai_kv.cache.block import TokenIds
from openai_kv.cache.exact_index import ExactEntry
from openai_kv.cache.hit import CacheHit, HitKind
from openai_kv.cache.radix_tree import PrefixMatch
from openai_kv.cache.store import BlockStore


def find_hit(store: BlockStore, namespace: str, tokens: TokenIds) -> CacheHit:
    """Exact index, else radix tree; as far as what the window sees from there is left. Changes nothing."""
    entry = store.exact.get(namespace, tokens)
    hit = _exact_hit(store, len(tokens), entry) if entry is not None else None
    return hit or _radix_hit(store, store.tree.find_prefix(namespace, tokens[:-1]))


def _exact_hit(store: BlockStore, num_tokens: int, entry: ExactEntry) -> CacheHit | None:
    """None: of what its end sees a window part is lost."""
    chain = tuple(store.tree.chain(entry.tail))
    if store.windows.reach(chain, num_tokens) < num_tokens:
        return None
    tail_tokens = num_tokens % store.tree.block_size
    if not tail_tokens:
        return CacheHit(HitKind.EXACT, num_tokens, chain, None, 0, entry.slot)
    return CacheHit(HitKind.EXACT, num_tokens, chain[:-1], entry.tail, tail_tokens, entry.slot)


def _radix_hit(store: BlockStore, match: PrefixMatch) -> CacheHit:
    size = store.tree.block_size
    num_tokens = len(match.blocks) * size + match.tail_tokens
    usable = store.windows.reach(match.matched, num_tokens)
    if usable < num_tokens:
        match, num_tokens = PrefixMatch(match.blocks[: usable // size], None, 0), usable
    kind = HitKind.PARTIAL if match.tail else HitKind.RADIX if match.blocks else HitKind.MISS
    return CacheHit(kind, num_tokens, tuple(match.blocks), match.tail, match.tail_tokens, None)
