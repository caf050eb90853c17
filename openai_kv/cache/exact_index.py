"""ExactIndex: whole prompts whose last hidden state is kept, so that a repeat samples without running a layer."""

from collections import OrderedDict
from dataclasses import dataclass

from openai_kv.cache.block import Block, TokenIds
from openai_kv.errors import IntegrityError


@dataclass(frozen=True, slots=True)
class PromptKey:
    """Equality compares every token; the hash only finds the place."""

    namespace: str
    prompt: TokenIds


@dataclass(frozen=True, slots=True)
class ExactEntry:
    """`tail` holds the last tokens of the prompt (and maybe more), `slot` the hidden state of its last position."""

    tail: Block
    slot: int


class ExactIndex:
    """At most `num_slots` entries; the least recently used makes room. An entry goes with its tail block.

    A slot is free, reserved (its hidden state is being computed) or held by an entry.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.entries: OrderedDict[PromptKey, ExactEntry] = OrderedDict()
        self.reserved: set[int] = set()
        self.free_slots = list(reversed(range(num_slots)))
        self._by_slot: dict[int, PromptKey] = {}
        self._by_block: dict[Block, dict[PromptKey, None]] = {}

    def get(self, namespace: str, prompt: TokenIds) -> ExactEntry | None:
        return self.entries.get(PromptKey(namespace, prompt)) if self.entries else None

    def touch(self, slot: int) -> None:
        """The entry that holds `slot` was used."""
        self.entries.move_to_end(self._by_slot[slot])

    def reserve(self, namespace: str, prompt: TokenIds) -> int | None:
        """A slot for the hidden state of `prompt`; None: it is known already, or every slot is reserved."""
        if self.get(namespace, prompt) is not None:
            return None
        if not self.free_slots and self.entries:
            self._drop_entry(next(iter(self.entries)))
        if not self.free_slots:
            return None
        slot = self.free_slots.pop()
        self.reserved.add(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give a reserved slot back unused."""
        self.reserved.remove(slot)
        self.free_slots.append(slot)

    def store(self, namespace: str, prompt: TokenIds, tail: Block, slot: int) -> None:
        """Turn the reserved `slot` into an entry; where another request was faster, the slot is released."""
        key = PromptKey(namespace, prompt)
        if key in self.entries:
            self.release(slot)
            return
        self.reserved.remove(slot)
        self.entries[key] = ExactEntry(tail, slot)
        self._by_slot[slot] = key
        self._by_block.setdefault(tail, {})[key] = None

    def drop(self, block: Block) -> None:
        """`block` loses its content: so do the entries that end in it."""
        for key in list(self._by_block.get(block, ())):
            self._drop_entry(key)

    def move(self, old: Block, new: Block) -> None:
        """`new` holds all that `old` does, at the same place of the same chain."""
        keys = self._by_block.pop(old, {})
        for key in keys:
            self.entries[key] = ExactEntry(new, self.entries[key].slot)
        if keys:
            self._by_block.setdefault(new, {}).update(keys)

    def _drop_entry(self, key: PromptKey) -> None:
        entry = self.entries.pop(key)
        del self._by_slot[entry.slot]
        self.free_slots.append(entry.slot)
        keys = self._by_block[entry.tail]
        del keys[key]
        if not keys:
            del self._by_block[entry.tail]

    def check_slots(self) -> None:
        """Raises IntegrityError unless every slot is free, reserved or held by the one entry that is found by it."""
        held = [entry.slot for entry in self.entries.values()]
        if sorted([*self.free_slots, *self.reserved, *held]) != list(range(self.num_slots)):
            raise IntegrityError("a hidden slot is lost or in two places")
        by_block = {key: block for block, keys in self._by_block.items() for key in keys}
        if by_block != {key: entry.tail for key, entry in self.entries.items()} or not all(self._by_block.values()):
            raise IntegrityError("exact entries and blocks disagree")
        if self._by_slot != {entry.slot: key for key, entry in self.entries.items()}:
            raise IntegrityError("exact entries and hidden slots disagree")
