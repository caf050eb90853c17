"""WindowPool: the parts of blocks that belong to layers which see a window only: who has one, and whose goes next.

After SGLang's radix cache for hybrid models: a cached block without its part is a tombstone, and a prefix is hit only
where the window before its end has none. Part 0 is vLLM's null block: zeros that nobody writes, for what is not there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from openai_kv.cache.block import Block


class WindowPool:
    """A part is free, referenced (in the window of a running request) or idle (kept with its cached block).

    The idle ones go in this order: those that requests left behind on their way and no look-up wanted so far, oldest
    first; the others, least recently used first; what soft pins want. It is recency and not the configured policy:
    that says which content stays, a part is only worth something where look-ups end, and those refresh it.

    A window of 0 tokens, where no layer has one, needs nothing and has nothing. `on_evict` hears of cached blocks whose
    part is about to go.
    """

    def __init__(
        self, window: int, num_blocks: int, block_size: int, on_evict: Callable[[Block], None] | None = None
    ) -> None:
        self.window = window
        self.num_blocks = max(0, num_blocks - 1)  # that can be used
        self.num_referenced = self.num_pinned = self.num_pinned_idle = 0
        self.evictions = 0
        self._size = block_size
        self._on_evict = on_evict
        self._free = list(range(self.num_blocks, 0, -1))
        self._passed: OrderedDict[Block, None] = OrderedDict()
        self._idle: OrderedDict[Block, None] = OrderedDict()
        self._protected: OrderedDict[Block, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return self.num_blocks - self.num_free - self.num_referenced

    @property
    def free_ids(self) -> tuple[int, ...]:
        return tuple(self._free)

    @property
    def idle_blocks(self) -> tuple[Block, ...]:
        """Whose parts can go, next first."""
        return (*self._passed, *self._idle, *self._protected)

    # Which blocks need theirs

    def first(self, num_tokens: int) -> int:
        """Index of the first block that a token behind `num_tokens` others sees."""
        return max(0, num_tokens - self.window + 1) // self._size if self.window else 0

    def end(self, num_tokens: int) -> int:
        """Index behind the last block of `num_tokens` tokens."""
        return -(-num_tokens // self._size) if self.window else 0

    def wanted(self, num_tokens: int) -> range:
        """Indices of the blocks that a pinned prefix keeps the parts of: for a hit of all, or of its whole blocks."""
        end = self.end(num_tokens)
        return range(min(self.first(num_tokens // self._size * self._size), max(0, end - 1)), end)

    def reach(self, blocks: Sequence[Block], num_tokens: int) -> int:
        """How many of the `num_tokens` tokens in `blocks` can be hit: all that is seen from there has its part."""
        first = self.first(num_tokens)
        for index in range(self.end(num_tokens) - 1, -1, -1):
            if index < first:
                break
            if not blocks[index].window_id:
                num_tokens = index * self._size
                first = self.first(num_tokens)
        return num_tokens

    # References

    def room(self, shared: Iterable[Block] = ()) -> int:
        """How many parts `take` can provide if those of `shared` stay."""
        idle = sum(block.window_refs == block.window_pins == 0 for block in shared)
        return self.num_blocks - self.num_referenced - self.num_pinned_idle - idle

    def take(self, block: Block) -> None:
        """Give `block` a part with one reference; there is room for it."""
        assert not block.window_id, f"{block} has its window part already"
        if not self._free:
            self._evict()
        block.window_id = self._free.pop()
        block.window_refs = 1
        self.num_referenced += 1

    def _evict(self) -> None:
        queue = self._passed or self._idle or self._protected
        self.evictions += 1
        block = next(iter(queue))
        if self._on_evict is not None:
            self._on_evict(block)
        self._clear(block)

    def acquire(self, block: Block) -> None:
        assert block.window_id, f"{block} has no window part"
        if not block.window_refs:
            self.num_referenced += 1
            self.num_pinned_idle -= block.window_pins > 0
        block.window_refs += 1
        self._settle(block)

    def release(self, block: Block, *, passed: bool = False) -> None:
        """One reference less; `passed`: because the request has moved on. It is free then if nothing is cached."""
        assert block.window_refs > 0, f"the window part of {block} was released once too often"
        block.window_refs -= 1
        if block.window_refs:
            return
        self.num_referenced -= 1
        self.num_pinned_idle += block.window_pins > 0
        if block.node is None:
            self._clear(block)
        else:
            self._settle(block, passed=passed)

    def move(self, block: Block, held: Block) -> None:
        """`held` has the content of `block`, which is in no index: the reference and, if it lacks one, the part too."""
        held.window_wanted = True
        if held.window_id:
            self.acquire(held)
            self.release(block)
            return
        held.window_id, held.window_refs = block.window_id, 1
        block.window_id = block.window_refs = 0

    def drop(self, block: Block) -> None:
        """The content of `block` leaves the cache; a part that is referenced stays its request's."""
        if block.window_id and not block.window_refs:
            self._clear(block)

    # Pins

    def pin(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.window_pins += 1
            if block.window_pins == 1:
                self._count_pinned(block, 1)
            self._settle(block)

    def unpin(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.window_pins -= 1
            if block.window_pins == 0:
                self._count_pinned(block, -1)
            self._settle(block)

    def _count_pinned(self, block: Block, change: int) -> None:
        self.num_pinned += change
        self.num_pinned_idle += change * (block.window_id > 0 and not block.window_refs)

    def pin_softly(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.window_soft += 1
            self._settle(block)

    def unpin_softly(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.window_soft -= 1
            self._settle(block)

    # Order

    def _settle(self, block: Block, *, passed: bool = False) -> None:
        """`block` changed: its part can go, as the last of its kind, or can't."""
        self._forget(block)
        if block.window_id and block.window_refs == block.window_pins == 0:
            self._queue(block, passed=passed)[block] = None

    def _queue(self, block: Block, *, passed: bool) -> OrderedDict[Block, None]:
        if block.window_soft:
            return self._protected
        return self._passed if passed and not block.hit_count and not block.window_wanted else self._idle

    def _forget(self, block: Block) -> None:
        for queue in (self._passed, self._idle, self._protected):
            queue.pop(block, None)

    def _clear(self, block: Block) -> None:
        self._forget(block)
        self._free.append(block.window_id)
        block.window_id = 0
