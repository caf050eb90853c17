"""What the radix tree has behind some tokens: it remembers how this very text went on before."""

from openai_kv.cache.block import Block, TokenIds
from openai_kv.cache.radix_tree import RadixTree

MOST_SIBLINGS = 8


def continuation(tree: RadixTree, namespace: str, after: Block | None, tokens: TokenIds, length: int) -> list[int]:
    """At most `length` tokens that follow `tokens` below `after` (None: the root); O(blocks walked * log(siblings)).

    Where texts part, the one used last is followed. Changes nothing, counts as no use.
    """
    found: list[int] = []
    while len(found) < length:
        head, tokens = tokens[: tree.block_size], tokens[tree.block_size :]
        blocks = tree.successors(namespace, after, head, MOST_SIBLINGS)
        if not blocks:
            break
        after = max(blocks, key=lambda block: block.last_accessed_time)
        found += after.token_ids[len(head) :]
        if len(after.token_ids) < tree.block_size:
            break
    return found[:length]
