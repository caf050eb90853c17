"""BlockTables: which blocks the running requests hold, what of them is still empty, and what each has stored."""

from openai_kv.cache.allocation import Allocation, WriteCount
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
        self.by_request[info.request_id] = allocation
        return allocation

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._size)

    def extend(self, allocation: Allocation, num_tokens: int) -> None:
        """Let it hold `num_tokens` in all; the store has room for that."""
        count = self.num_blocks(num_tokens) - len(allocation.blocks)
        if count:
            allocation.extend(self._store.take(count))
        self.num_empty_slots += count * self._size - (num_tokens - allocation.num_tokens)
        allocation.num_tokens = num_tokens

    def shrink(self, allocation: Allocation, num_tokens: int) -> None:
        """Let it hold no more than `num_tokens`; what was behind them must not be cached."""
        surplus = allocation.cut(self.num_blocks(num_tokens))
        self.num_empty_slots += allocation.num_tokens - num_tokens - len(surplus) * self._size
        allocation.num_tokens = num_tokens
        self._store.release(reversed(surplus))

    def close(self, request_id: str) -> None:
        """Give all references back; nothing happens for a request that holds none."""
        allocation = self.by_request.pop(request_id, None)
        if allocation is None:
            return
        self.num_empty_slots -= len(allocation.blocks) * self._size - allocation.num_tokens
        self._store.release(reversed(allocation.blocks))

    def detach(self) -> None:
        """The cache forgets what they hold."""
        for allocation in self.by_request.values():
            allocation.detached = True
