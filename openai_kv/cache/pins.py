"""Pins: prefixes that are kept until they expire, hard ones from everybody, soft ones from the eviction policy."""

from collections.abc import Callable, Iterable

from sortedcontainers import SortedKeyList

from openai_kv.cache.block import Block
from openai_kv.cache.candidate_queue import CandidateQueue
from openai_kv.cache.pin import Pin, PinLimits
from openai_kv.cache.policy import BlockInfo
from openai_kv.cache.pool import BlockPool
from openai_kv.cache.radix_tree import RadixTree
from openai_kv.cache.window_pool import WindowPool
from openai_kv.errors import PinLimitError
from openai_kv.request import PinOrder


class Pins:
    """All pins. The first and the last moment of one walk its chain, all between is O(log pins).

    `held_back` are the blocks that would be candidates but for a soft pin. `settle` is called with the end of a chain
    that a pin came to or left.
    """

    def __init__(
        self,
        pool: BlockPool,
        windows: WindowPool,
        tree: RadixTree,
        settle: Callable[[Block], None],
        clock: Callable[[], float],
        limits: PinLimits,
    ) -> None:
        self.by_id: dict[str, Pin] = {}
        self.hard: SortedKeyList[Pin, tuple[float, int]] = SortedKeyList(key=_expiry_order)
        self.soft: SortedKeyList[Pin, tuple[float, int]] = SortedKeyList(key=_expiry_order)
        self.held_back: dict[BlockInfo, Block] = {}
        self._order = CandidateQueue()
        self._pool, self._windows, self._tree = pool, windows, tree
        self._settle, self._clock = settle, clock
        self._limits = limits

    # Hard pins

    def pin(self, order: PinOrder, block: Block, num_tokens: int) -> Pin:
        """Pin the first `num_tokens` tokens of the chain that ends with `block`. Raises PinLimitError."""
        chain = self._tree.chain(block)
        parts = self._wanted_parts(chain, num_tokens)
        self.check_room(sum(not each.pin_count for each in chain), sum(not each.window_pins for each in parts))
        now = self._clock()
        pin = Pin(block, num_tokens, order.ttl, now, now + order.ttl, order.pin_id, order.label)
        self.by_id[pin.pin_id] = pin
        self._keep(pin)
        return pin

    def check_room(self, num_blocks: int, num_parts: int) -> None:
        """Raises PinLimitError if one more pin is too much, with so many blocks and window parts not pinned yet."""
        if len(self.by_id) >= self._limits.max_pins:
            raise PinLimitError(f"There are {len(self.by_id)} pins, and there may be no more.")
        pinned, most = self._pool.num_pinned, share_of(self._limits.max_pinned_fraction, self._pool.num_blocks)
        if pinned + num_blocks > most:
            raise PinLimitError(f"At most {most} blocks may be pinned; {pinned} are, and this needs {num_blocks} more.")
        pinned, most = self._windows.num_pinned, share_of(self._limits.max_pinned_fraction, self._windows.num_blocks)
        if pinned + num_parts > most:
            raise PinLimitError(
                f"At most {most} blocks of the window may be pinned; {pinned} are, and this needs {num_parts} more."
            )

    def unpin(self, pin_id: str) -> bool:
        """End a hard pin; False: there is none of that id."""
        pin = self.by_id.get(pin_id)
        if pin is not None:
            self._end(pin)
        return pin is not None

    # Soft pins

    def mark(self, block: Block, num_tokens: int, ttl: float) -> None:
        """Soft-pin the first `num_tokens` tokens of the chain that ends with `block`, or restart the TTL.

        Where that makes too many, those that expire first end, of those that expire together the longest.
        """
        now, known = self._clock(), _soft_pin(block, num_tokens)
        if known is not None:
            known.ttl = max(known.ttl, ttl)
            self._prolong(known, now + known.ttl)
            return
        self._keep(Pin(block, num_tokens, ttl, now, now + ttl))
        most = share_of(self._limits.soft_pin_fraction, self._pool.num_blocks)
        while self._pool.num_soft_pinned > most:
            self._end(self.soft[0])

    def give_up(self) -> None:
        """Nothing else is left: the soft-pinned candidate that expires first becomes one for the policy.

        What ended in it ends one block earlier from now on.
        """
        block = self.held_back[self._order.first()]
        before = self._tree.parent(block)
        for pin in [pin for pin in block.pins if not pin.is_hard]:
            self._shorten(pin, before)
        self._settle(block)

    def _shorten(self, pin: Pin, before: Block | None) -> None:
        self._remove(pin)
        self._windows.unpin_softly(self._parts(pin))
        self._pool.unpin_softly(pin.block)
        if before is not None:
            pin.block, pin.num_tokens = before, (before.depth + 1) * self._tree.block_size
            self._windows.pin_softly(self._parts(pin))
            self._add_soft(pin, before)

    def _add_soft(self, pin: Pin, block: Block) -> None:
        """`pin`, in no list now, ends in `block`, whose count has it already; of two that are the same one stays."""
        known = _soft_pin(block, pin.num_tokens)
        if known is None:
            pin.block = block
            self._add(pin)
            return
        known.ttl = max(known.ttl, pin.ttl)
        self._prolong(known, max(known.expires_at, pin.expires_at))
        self._windows.unpin_softly(self._parts(known))
        for each in self._tree.chain(block):
            self._pool.unpin_softly(each)

    # Both

    def touch(self, blocks: Iterable[Block], num_tokens: int) -> None:
        """A look-up matched `blocks`, `num_tokens` tokens in all: soft pins it matched whole start anew."""
        for block in blocks:
            for pin in block.pins:
                if pin.num_tokens <= num_tokens:
                    pin.hits += 1
                    if not pin.is_hard:
                        self._prolong(pin, self._clock() + pin.ttl)

    def move(self, old: Block, new: Block) -> None:
        """`new` holds all that `old` does, at the same place of the same chain."""
        if not old.pins:
            return
        for pin in old.pins:
            self._remove(pin)
            if pin.is_hard:
                self._pool.unpin(old)
                self._pool.pin(new)
                self._windows.unpin(self._part(old))
                self._windows.pin(self._part(new))
                pin.block = new
                self._add(pin)
            else:
                self._pool.unpin_softly(old)
                self._pool.pin_softly(new)
                self._windows.unpin_softly(self._part(old))
                self._windows.pin_softly(self._part(new))
                self._add_soft(pin, new)
        self._settle(new)

    def expire(self) -> None:
        """End what is over."""
        now = self._clock()
        for pins in (self.hard, self.soft):
            while pins and pins[0].expires_at <= now:
                self._end(pins[0])

    def clear(self, *, hard: bool) -> None:
        """End all soft pins, and the hard ones too if asked."""
        for pin in [*self.soft, *(self.hard if hard else ())]:
            self._end(pin)

    def hold_back(self, block: Block) -> None:
        """`block` would be a candidate, but is soft-pinned."""
        self.held_back[block.info] = block
        self._order.add(block.info, max(pin.expires_at for pin in block.pins))

    def release(self, block: Block) -> None:
        """`block` is not held back, or no more."""
        if self.held_back.pop(block.info, None) is not None:
            self._order.discard(block.info)

    def _keep(self, pin: Pin) -> None:
        take = self._pool.pin if pin.is_hard else self._pool.pin_softly
        for each in self._tree.chain(pin.block):
            take(each)
        (self._windows.pin if pin.is_hard else self._windows.pin_softly)(self._parts(pin))
        self._add(pin)
        self._settle(pin.block)

    def _end(self, pin: Pin) -> None:
        self._remove(pin)
        self.by_id.pop(pin.pin_id, None)
        let_go = self._pool.unpin if pin.is_hard else self._pool.unpin_softly
        for each in self._tree.chain(pin.block):
            let_go(each)
        (self._windows.unpin if pin.is_hard else self._windows.unpin_softly)(self._parts(pin))
        self._settle(pin.block)

    def _part(self, block: Block) -> list[Block]:
        """The last block of a pin, whose window part is always wanted if there are any."""
        return [block] if self._windows.window else []

    def _parts(self, pin: Pin) -> list[Block]:
        """The blocks whose window parts it keeps."""
        return self._wanted_parts(self._tree.chain(pin.block), pin.num_tokens) if self._windows.window else []

    def _wanted_parts(self, chain: list[Block], num_tokens: int) -> list[Block]:
        return [chain[index] for index in self._windows.wanted(num_tokens)]

    def _prolong(self, pin: Pin, expires_at: float) -> None:
        self.soft.remove(pin)
        pin.expires_at = expires_at
        self.soft.add(pin)
        if pin.block.info in self.held_back:
            self.hold_back(pin.block)

    def _add(self, pin: Pin) -> None:
        pin.block.pins = (*pin.block.pins, pin)
        (self.hard if pin.is_hard else self.soft).add(pin)

    def _remove(self, pin: Pin) -> None:
        pin.block.pins = tuple(each for each in pin.block.pins if each is not pin)
        (self.hard if pin.is_hard else self.soft).remove(pin)


def share_of(fraction: float, num_blocks: int) -> int:
    """Whole blocks of a share, not one less because 0.29 * 100 is 28.999999999999996."""
    return int(round(fraction * num_blocks, 6))


def _expiry_order(pin: Pin) -> tuple[float, int]:
    return pin.expires_at, -pin.num_tokens


def _soft_pin(block: Block, num_tokens: int) -> Pin | None:
    return next((pin for pin in block.pins if pin.num_tokens == num_tokens and not pin.is_hard), None)
