"""Block, the handle of one slot range of the KV pool, and the read-only view of it that policies get."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from openai_kv.cache.node import Node
    from openai_kv.cache.pin import Pin

TokenIds = tuple[int, ...]


def root_key(namespace: str) -> int:
    """What the keys of a namespace's first blocks start from; not hash(), which Python salts per process for text."""
    return int.from_bytes(blake2b(namespace.encode(), digest_size=8).digest(), signed=True) if namespace else 0


def chain_key(before: int, tokens: TokenIds) -> int:
    """The 64-bit key of a block by its parent's; hash() of integers is not salted, so processes agree."""
    return hash((before, tokens))


class Block:
    """One physical block. `token_ids`, `depth` and what follows describe its cached content and go with `clear()`.

    `ref_count` counts running requests, `pin_count` hard pins and `soft_count` soft pins that keep it; `pins` are those
    that end in it. `node` is the radix tree node it is in, None: not cached. `in_memory`: its writer wanted it in no
    slower tier. `attention` gathers attention mass until the block is cached and a policy may hear of it.
    `content_key` and `tiers` are Demotion's.

    `window_id` is the block of the window group's pool with its part for layers that see a window only, 0: none (see
    WindowPool). `window_refs`, `window_pins`, `window_soft` count who needs that part; `window_wanted`: it was computed
    more than once; `window_tiers`: Demotion's, for this part.
    """

    __slots__ = (
        "attention",
        "block_id",
        "content_key",
        "created",
        "created_time",
        "depth",
        "gap",
        "hit_count",
        "in_memory",
        "info",
        "key",
        "kind",
        "last_accessed",
        "last_accessed_time",
        "last_hit_time",
        "node",
        "parent",
        "pin_count",
        "pins",
        "ref_count",
        "session_id",
        "soft_count",
        "tiers",
        "token_ids",
        "turn",
        "window_id",
        "window_pins",
        "window_refs",
        "window_soft",
        "window_tiers",
        "window_wanted",
    )

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.pin_count = self.soft_count = 0
        self.pins: tuple[Pin, ...] = ()
        self.window_id = self.window_refs = self.window_pins = self.window_soft = 0
        self.clear()

    def clear(self) -> None:
        """Forget the content. The next content gets another view, so that no policy can take one for the other."""
        self.info = BlockView(self)
        self.node: Node | None = None
        self.token_ids: TokenIds = ()
        self.key = 0
        self.parent: BlockView | None = None
        self.depth = 0
        self.hit_count = 0
        self.attention = 0.0
        self.created = self.last_accessed = 0
        self.created_time = self.last_accessed_time = self.gap = 0.0
        self.last_hit_time = 0.0
        self.kind = ""
        self.turn = 1
        self.session_id: str | None = None
        self.in_memory = False
        self.content_key = b""
        self.tiers = self.window_tiers = 0
        self.window_wanted = False

    def acquire(self) -> None:
        self.ref_count += 1

    def release(self) -> None:
        assert self.ref_count > 0, f"block {self.block_id} released once too often"
        self.ref_count -= 1

    @property
    def is_first_block(self) -> bool:
        """The first of its chain: it holds the attention sink."""
        return self.depth == 0

    def __repr__(self) -> str:
        return f"Block({self.block_id}, tokens={len(self.token_ids)}, refs={self.ref_count}, depth={self.depth})"


class BlockView:
    """`BlockInfo` of one block's present content, equal only to itself."""

    __slots__ = ("_block",)

    def __init__(self, block: Block) -> None:
        self._block = block

    @property
    def block_id(self) -> int:
        return self._block.block_id

    @property
    def key(self) -> int:
        return self._block.key

    @property
    def parent(self) -> BlockView | None:
        return self._block.parent

    @property
    def num_tokens(self) -> int:
        return len(self._block.token_ids)

    @property
    def depth(self) -> int:
        return self._block.depth

    @property
    def is_first_block(self) -> bool:
        return self._block.is_first_block

    @property
    def ref_count(self) -> int:
        return self._block.ref_count

    @property
    def hit_count(self) -> int:
        return self._block.hit_count

    @property
    def created(self) -> int:
        return self._block.created

    @property
    def last_accessed(self) -> int:
        return self._block.last_accessed

    @property
    def created_time(self) -> float:
        return self._block.created_time

    @property
    def last_accessed_time(self) -> float:
        return self._block.last_accessed_time

    @property
    def gap(self) -> float:
        return self._block.gap

    @property
    def kind(self) -> str:
        return self._block.kind

    @property
    def turn(self) -> int:
        return self._block.turn

    @property
    def session_id(self) -> str | None:
        return self._block.session_id

    def __repr__(self) -> str:
        return f"BlockInfo({self._block!r})"
