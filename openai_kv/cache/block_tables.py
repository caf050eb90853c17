"""BlockTables: which blocks the running requests hold, what of them is still empty, and what each has stored."""

from array import array

from openai_kv.cache.allocation import Allocation, WriteCount
from openai_kv.cache.block import Block
from openai_kv.cache.hit import CacheHit
from openai_kv.cache.store import BlockStore
from openai_kv.request import RequestInfo


class BlockTables:
    """One for each running request, by its id. References are taken and given back here."""

    def __init__(self, store: BlockStore) -> None:
        self.by_request: dict[str, Allocation] = {}
        self.written: dict[str, WriteCount] = {}  # of preempted requests too
        self.num_empty_slots = 0  # in referenced blocks: the ends of the tables
        self._store = store
        self._windows = store.windows
        self._size = store.tree.block_size

    def __getitem__(self, request_id: str) -> Allocation:
        return self.by_request[request_id]

    def open(self, info: RequestInfo, hit: CacheHit) -> Allocation:
        """A table that begins with the whole blocks of `hit`, which the request holds already."""
        assert info.request_id not in self.by_request, f"{info.request_id} has its blocks already"
        written = self.written.setdefault(info.request_id, WriteCount())
        written.settle(hit.num_tokens)
        allocation = Allocation(info, written, len(hit.blocks), num_tokens=len(hit.blocks) * self._size)
        allocation.extend(hit.blocks)
        self._open_window(allocation, self._windows.first(hit.num_tokens))
        self.by_request[info.request_id] = allocation
        return allocation

    def _open_window(self, allocation: Allocation, start: int) -> None:
        if not self._windows.window:
            return
        allocation.window_start, seen = start, allocation.blocks[start:]
        for block in seen:
            self._windows.acquire(block)
        allocation.window_ids.extend([0] * start + [block.window_id for block in seen])

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def extend(self, allocation: Allocation, num_tokens: int) -> None:
        """Let it hold `num_tokens` in all; the store has room for that."""
        count = self.num_blocks(num_tokens) - len(allocation.blocks)
        if count:
            allocation.extend(self._store.take(count))
        self.num_empty_slots += count * self._size - (num_tokens - allocation.num_tokens)
        allocation.num_tokens = num_tokens

    def num_missing_parts(self, allocation: Allocation, num_tokens: int) -> int:
        """How many window parts have to be taken before its first `num_tokens` tokens are computed."""
        return max(0, self._windows.end(num_tokens) - len(allocation.window_ids))

    def extend_window(self, allocation: Allocation, num_tokens: int) -> None:
        """Give it the window parts for its first `num_tokens` tokens; there is room for them."""
        for block in allocation.blocks[len(allocation.window_ids) : self._windows.end(num_tokens)]:
            self._windows.take(block)
            allocation.window_ids.append(block.window_id)

    def slide(self, allocation: Allocation, num_tokens: int) -> None:
        """It has `num_tokens`: window parts that nothing behind them sees are let go, or never needed."""
        begin, start = allocation.window_start, self._windows.first(num_tokens)
        if start <= begin:
            return
        for block in self._left_behind(allocation, start):
            self._windows.release(block, passed=True)
        allocation.window_ids[begin:start] = array("i", [0]) * (start - begin)
        allocation.window_start = start

    def num_parts_to_jump(self, allocation: Allocation, num_tokens: int) -> int:
        """How many window parts it takes, beyond those it lets go, to go on behind `num_tokens`."""
        start = self._windows.first(num_tokens)
        left = self._left_behind(allocation, start)
        freed = sum(block.window_refs == 1 and not block.window_pins for block in left)
        return self._windows.end(num_tokens) - max(start, len(allocation.window_ids)) - freed

    def _left_behind(self, allocation: Allocation, start: int) -> list[Block]:
        return allocation.blocks[allocation.window_start : min(start, len(allocation.window_ids))]

    def replace(self, allocation: Allocation, index: int, held: Block) -> None:
        """Hold `held`, which has the same content, instead of the request's own block."""
        block = allocation.blocks[index]
        self._store.share([held])
        allocation.replace(index, held)
        held.tiers |= block.tiers
        if allocation.window_start <= index < len(allocation.window_ids):
            if not held.window_id:  # no tier had it either, or ours would come from there
                held.window_tiers = block.window_tiers
            self._windows.move(block, held)
            allocation.window_ids[index] = held.window_id
            self._store.demotion.on_part(held)
        self._store.release([block])

    def shrink(self, allocation: Allocation, num_tokens: int) -> None:
        """Let it hold no more than `num_tokens`; what was behind them must not be cached."""
        count = self.num_blocks(num_tokens)
        for block in reversed(allocation.blocks[max(count, allocation.window_start) : len(allocation.window_ids)]):
            self._windows.release(block)
        del allocation.window_ids[count:]
        surplus = allocation.cut(count)
        self.num_empty_slots += allocation.num_tokens - num_tokens - len(surplus) * self._size
        allocation.num_tokens = num_tokens
        self._store.release(reversed(surplus))

    def close(self, request_id: str) -> None:
        """Give all references back; nothing happens for a request that holds none."""
        allocation = self.by_request.pop(request_id, None)
        if allocation is None:
            return
        self.num_empty_slots -= len(allocation.blocks) * self._size - allocation.num_tokens
        for block in reversed(allocation.window_blocks):
            self._windows.release(block)
        self._store.release(reversed(allocation.blocks))

    def detach(self) -> None:
        """The cache forgets what they hold."""
        for allocation in self.by_request.values():
            allocation.detached = True
