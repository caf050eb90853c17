"""Random lives of requests against the cache, with the memory behind the blocks simulated slot by slot."""

from collections.abc import Iterable
from collections.abc import Sequence as Table
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openai_kv.cache.content_key import content_keys, root_content_key, window_key
from openai_kv.cache.demotion import Demotion, DemotionRule
from openai_kv.cache.hit import CacheHit, HitKind
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.pin import Pin, PinLimits
from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.default_plugins.h2o import H2OPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.default_plugins.sink_lru import SinkLRUPolicy
from openai_kv.errors import PinLimitError
from openai_kv.metrics import CacheStats
from openai_kv.outputs import BlockCopy
from openai_kv.request import Breakpoint, PinOrder, RequestInfo, Retention

Prefix = tuple[object, ...]
FIRST_CHUNK = 5


class BrokenPolicy(EvictionPolicy):
    """Every hook raises, and the answers are garbage by turns."""

    name = "broken"
    needs_attention = True

    def __init__(self) -> None:
        self.calls = 0

    def on_insert(self, block: BlockInfo) -> None:
        raise RuntimeError

    on_access = on_evictable = on_unevictable = on_evict = on_insert

    def on_miss(self, info: RequestInfo, depth: int) -> None:
        raise RuntimeError

    def on_request_finished(self, info: RequestInfo) -> None:
        raise RuntimeError

    def record_attention(self, block: BlockInfo, score: float) -> None:
        raise RuntimeError

    def admit(self, block: BlockInfo) -> bool:
        raise RuntimeError

    def select_victim(self, candidates: AbstractSet[BlockInfo]) -> BlockInfo:
        self.calls += 1
        answers: list[object] = [None, [], "block", *candidates]
        return answers[self.calls % len(answers)]  # type: ignore[return-value]


class PickyPolicy(LRUPolicy):
    """Keeps every other block, the latter on second thoughts only."""

    name = "picky"

    def admit(self, block: BlockInfo) -> bool:
        return bool((block.block_id + block.hit_count) % 2)


POLICIES: list[type[EvictionPolicy]] = [LRUPolicy, SinkLRUPolicy, H2OPolicy, BrokenPolicy, PickyPolicy]


@dataclass
class Sequence:
    """A request as the scheduler and the model runner would keep it."""

    info: RequestInfo
    tokens: list[int]
    computed: int = 0
    slot: int | None = None
    copies: tuple[BlockCopy, ...] = ()
    first_hit: int | None = None
    stale: bool = False

    def prefix(self, end: int) -> Prefix:
        return (self.info.namespace, *self.tokens[:end])


@dataclass
class Memory:
    """What the slots of the pool hold: the prefix their K and V were computed for."""

    block_size: int
    slots: dict[tuple[int, int], Prefix] = field(default_factory=dict)
    hidden: dict[int, Prefix] = field(default_factory=dict)

    def copy(self, copies: Iterable[BlockCopy]) -> None:
        """Between blocks of the full group."""
        moved = {
            (copy.target, offset): self.slots.get((copy.source, offset), ())
            for copy in copies
            for offset in range(copy.num_tokens)
        }
        self.slots.update(moved)

    def compute(self, sequence: Sequence, table: Table[int], end: int, start: int = 0) -> None:
        for position in range(max(start, sequence.computed), end):
            place = (table[position // self.block_size], position % self.block_size)
            self.slots[place] = sequence.prefix(position + 1)

    def holds(self, table: Table[int], sequence: Sequence, end: int, start: int = 0) -> bool:
        return all(
            self.slots.get((table[at // self.block_size], at % self.block_size)) == sequence.prefix(at + 1)
            for at in range(start, end)
        )


def common_length(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=14)
namespaces = st.sampled_from(["", "salt"])
flags = st.booleans()
ttls = st.sampled_from([1.0, 60.0, 200_000.0])
breakpoints = st.lists(st.builds(Breakpoint, st.integers(1, 14), ttls), max_size=2)


class CacheMachine(RuleBasedStateMachine):
    """`stored` is the reference: every text whose K and V were handed over, good as long as nothing was dropped."""

    @initialize(
        block_size=st.sampled_from([1, 3, 4, 7]),
        num_blocks=st.sampled_from([6, 12, 40]),
        num_slots=st.sampled_from([0, 1, 3]),
        policy=st.sampled_from(POLICIES),
        window=st.sampled_from([0, 0, 1, 4, 9]),
        num_parts=st.sampled_from([5, 9, 40]),
    )
    def start(
        self,
        block_size: int,
        num_blocks: int,
        num_slots: int,
        policy: type[EvictionPolicy],
        window: int,
        num_parts: int,
    ) -> None:
        self.size = block_size
        self.window = window
        self.num_blocks = num_blocks
        self.picky = policy is PickyPolicy
        self.now = 0.0
        self.manager = KVCacheManager(
            num_blocks=num_blocks,
            block_size=block_size,
            policy=policy(),
            num_hidden_slots=num_slots,
            clock=lambda: self.now,
            pin_limits=PinLimits(max_pins=2),
            demotion=Demotion("model", [DemotionRule("write-through"), DemotionRule("write-back")]),
            window=window,
            num_window_blocks=num_parts + 1 if window else 0,
        )
        self.memory, self.window_memory = Memory(block_size), Memory(block_size)
        self.running: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.pins: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.dropped = False
        self.stored: set[tuple[str, tuple[int, ...]]] = set()
        self.exact: set[tuple[str, tuple[int, ...]]] = set()
        self.named: dict[bytes, Prefix] = {}  # what a tier has under a key
        self.count = 0

    # Admission

    @rule(prompt=tokens, namespace=namespaces, reserve=flags, explicit=flags, ends=breakpoints)
    def admit(self, prompt: list[int], namespace: str, reserve: bool, explicit: bool, ends: list[Breakpoint]) -> None:
        self.count += 1
        retention = Retention(explicit, tuple(end for end in ends if end.num_tokens <= len(prompt)))
        sequence = Sequence(RequestInfo(f"r{self.count}", len(prompt), namespace, retention=retention), list(prompt))
        if self._admit(sequence, again=False) and reserve:
            sequence.slot = self.manager.reserve_hidden_slot(prompt, sequence.info)

    @precondition(lambda self: self.preempted)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.preempted))
        if self._admit(sequence, again=True):
            self.preempted.remove(sequence)

    def _admit(self, sequence: Sequence, *, again: bool) -> bool:
        before = self.manager.stats()
        hit = self.manager.lookup(sequence.tokens, sequence.info)
        assert self.manager.stats() == before
        self._check_hit(sequence, hit)
        end = min(len(sequence.tokens), hit.num_tokens + FIRST_CHUNK)
        fits = self._room(hit) >= -(-len(sequence.tokens) // self.size) - len(hit.blocks)
        fits = fits and (not self.window or self._window_room(hit) >= -(-end // self.size) - len(hit.blocks))
        copies = self.manager.admit(sequence.info, hit, len(sequence.tokens), count=not again, window_tokens=end)
        assert (copies is not None) == fits
        after = self.manager.stats()
        if copies is None:
            assert after == before
            return False
        if again:
            assert (after.hits, after.prompt_tokens) == (before.hits, before.prompt_tokens)
        else:
            assert after.prompt_tokens == before.prompt_tokens + sequence.info.num_prompt_tokens
            sequence.first_hit = hit.num_tokens
        self._check_shortfall(before, after)
        sequence.computed, sequence.copies, sequence.stale = hit.num_tokens, copies, False
        self.running.append(sequence)
        return True

    def _room(self, hit: CacheHit) -> int:
        blocks = self.manager.store.pool.blocks
        idle = {block for block in blocks if block.node and not block.ref_count and not block.pin_count}
        return self.manager.store.pool.num_free + len(idle - set(hit.blocks))

    def _window_room(self, hit: CacheHit) -> int:
        blocks = [block for block in self.manager.store.pool.blocks if block.window_id]
        idle = {block for block in blocks if not block.window_refs and not block.window_pins}
        seen = hit.blocks[self._first_seen(hit.num_tokens) // self.size :]
        return self.manager.store.windows.num_blocks - len(blocks) + len(idle - set(seen))

    def _first_seen(self, num_tokens: int) -> int:
        return max(0, num_tokens - self.window + 1)

    def _check_shortfall(self, before: CacheStats, after: CacheStats) -> None:
        if not self.picky and after.eviction_count > before.eviction_count:
            assert after.free == 0

    def _check_hit(self, sequence: Sequence, hit: CacheHit) -> None:
        table = [block.block_id for block in hit.matched]
        pending = {copy.target for other in self.running for copy in other.copies}
        assert not pending.intersection(table)
        assert self.memory.holds(table, sequence, hit.num_tokens)
        if self.window:
            parts = [block.window_id for block in hit.matched]
            pending = {copy.window_target for other in self.running for copy in other.copies}
            assert not pending.intersection(parts[self._first_seen(hit.num_tokens) // self.size :])
            assert self.window_memory.holds(parts, sequence, hit.num_tokens, self._first_seen(hit.num_tokens))
        text = tuple(sequence.tokens)
        if hit.kind is HitKind.EXACT:
            assert hit.num_tokens == len(text) and hit.hidden_slot is not None
            assert self.memory.hidden[hit.hidden_slot] == sequence.prefix(len(text))
            assert (sequence.info.namespace, text) in self.exact
        elif sequence.info.retention.bypasses:
            assert hit.num_tokens == 0
        elif self._nothing_evicted() and not self.picky and not self.dropped:
            known = [
                common_length(text[:-1], other) for space, other in self.stored if space == sequence.info.namespace
            ]
            assert hit.num_tokens == max(known, default=0)

    def _nothing_evicted(self) -> bool:
        stats = self.manager.stats()
        return stats.eviction_count == 0 and (stats.window is None or stats.window.evictions == 0)

    # Running

    @precondition(lambda self: self.running)
    @rule(chunk=st.integers(1, 14))
    def step(self, chunk: int) -> None:
        """All copies, then every request computes up to `chunk` tokens and caches its full blocks."""
        ends = [self._scheduled(sequence, chunk) for sequence in self.running]
        self._save_and_copy()
        for sequence, end in zip(self.running, ends, strict=True):
            table = self.manager.block_ids(sequence.info.request_id)
            assert self.memory.holds(table, sequence, sequence.computed)
            self.memory.compute(sequence, table, end)
            if self.window:
                table = self.manager.window_block_ids(sequence.info.request_id)
                seen = self._first_seen(sequence.computed)
                assert self.window_memory.holds(table, sequence, sequence.computed, seen)
                self.window_memory.compute(sequence, table, end)
            sequence.computed = end
        for sequence in self.running:
            whole = sequence.computed == sequence.info.num_prompt_tokens
            self._cache(sequence, with_tail=whole)
            if whole:
                self.manager.pins.keep(sequence.info, sequence.tokens)
            if sequence.slot is not None and sequence.computed >= sequence.info.num_prompt_tokens:
                self._store_exact(sequence, sequence.slot)
            self.manager.slide(sequence.info.request_id, sequence.computed)

    def _save_and_copy(self) -> None:
        """What a step begins with. Whatever is saved is what its key says."""
        for save in self.manager.take_saves():
            memory, prefix = self.window_memory if save.windowed else self.memory, self.named[save.key]
            held = [memory.slots[save.block_id, offset] for offset in range(self.size)]
            assert held == [prefix[: len(prefix) - back] for back in reversed(range(self.size))]
            assert prefix[-self.size :] == save.token_ids
        copies = [copy for sequence in self.running for copy in sequence.copies]
        self.memory.copy(copies)
        if self.window:
            self.window_memory.copy(BlockCopy(c.window_source, c.window_target, c.num_tokens) for c in copies)
        for sequence in self.running:
            sequence.copies = ()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def promote(self, data: st.DataObject) -> None:
        """A tier has what follows in whole blocks, and of the window group what is seen from their end."""
        sequence = data.draw(st.sampled_from(self.running))
        first, last = sequence.computed // self.size + 1, (len(sequence.tokens) - 1) // self.size
        if first > last:
            return
        request_id, num_blocks = sequence.info.request_id, data.draw(st.integers(first, last))
        before, end = self.manager.stats(), num_blocks * self.size
        if not self.manager.jump(request_id, end):
            assert self.manager.stats() == before
            return
        self._save_and_copy()
        self.memory.compute(sequence, self.manager.block_ids(request_id), end)
        if self.window:
            seen = self.manager.first_seen(num_blocks) * self.size
            self.window_memory.compute(sequence, self.manager.window_block_ids(request_id), end, seen)
        self.dropped = self.dropped or self.window > 0  # there are holes now
        sequence.computed = end
        self._cache(sequence, with_tail=False)

    def _scheduled(self, sequence: Sequence, chunk: int) -> int:
        """How far it can compute: no further than it has, where the window group has no room."""
        end = min(len(sequence.tokens), sequence.computed + chunk)
        return end if self.manager.allocate_slots(sequence.info.request_id, end) else sequence.computed

    def _store_exact(self, sequence: Sequence, slot: int) -> None:
        prompt = sequence.tokens[: sequence.info.num_prompt_tokens]
        self.manager.store_exact(sequence.info.request_id, prompt, slot)
        self.memory.hidden[slot] = sequence.prefix(len(prompt))
        self.exact.add((sequence.info.namespace, tuple(prompt)))
        sequence.slot = None

    @precondition(lambda self: self.running)
    @rule(data=st.data(), token=st.integers(0, 1))
    def grow(self, data: st.DataObject, token: int) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        before = self.manager.stats()
        sequence.tokens.append(token)
        if not self.manager.allocate_slots(sequence.info.request_id, len(sequence.tokens)):
            assert self.manager.stats() == before
            sequence.tokens.pop()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), with_tail=flags)
    def cache(self, data: st.DataObject, with_tail: bool) -> None:
        self._cache(data.draw(st.sampled_from(self.running)), with_tail=with_tail)

    def _cache(self, sequence: Sequence, *, with_tail: bool) -> None:
        if sequence.copies:
            return
        computed = tuple(sequence.tokens[: sequence.computed])
        self._name(sequence.info.namespace, computed)
        self.manager.cache_blocks(sequence.info.request_id, computed, with_tail=with_tail)
        if not sequence.stale:
            end = sequence.info.retention.num_stored(len(computed))
            lost = self.window > 0 and end < len(computed)  # the window has left the last block before it was cached
            end = end if with_tail and not lost else end // self.size * self.size
            self.stored.add((sequence.info.namespace, computed[:end]))

    def _name(self, namespace: str, text: tuple[int, ...]) -> None:
        ends = range(self.size, len(text) + 1, self.size)
        keys = content_keys(root_content_key("model", namespace), [text[end - self.size : end] for end in ends])
        for key, end in zip(keys, ends, strict=True):
            self.named[key] = self.named[window_key(key)] = (namespace, *text[:end])

    @rule(mass=st.dictionaries(st.integers(0, 5), st.floats(0, 4)))
    def attend(self, mass: dict[int, float]) -> None:
        self.manager.record_attention(mass)

    # The end

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=flags)
    def preempt(self, data: st.DataObject, keep: bool) -> None:
        sequence = self._leave(data, keep)
        self.preempted.append(sequence)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), keep=flags)
    def finish(self, data: st.DataObject, keep: bool) -> None:
        sequence = self._leave(data, keep)
        request_id, first_hit = sequence.info.request_id, sequence.first_hit
        assert first_hit is not None
        assert 0 <= self.manager.cache_write_tokens(request_id) <= sequence.info.num_prompt_tokens - first_hit
        self.manager.finish(sequence.info)
        assert self.manager.cache_write_tokens(request_id) == 0

    def _leave(self, data: st.DataObject, keep: bool) -> Sequence:
        sequence = data.draw(st.sampled_from(self.running))
        if keep:
            self._cache(sequence, with_tail=True)
        self.running.remove(sequence)
        self.manager.free(sequence.info.request_id)
        if sequence.slot is not None:
            self.manager.release_hidden_slot(sequence.slot)
        sequence.slot, sequence.copies = None, ()
        return sequence

    # The operator

    @rule(include_pinned=flags)
    def reset(self, include_pinned: bool) -> None:
        before = self.manager.stats()
        result = self.manager.reset(include_pinned=include_pinned)
        after = self.manager.stats()
        assert result.freed_blocks == after.free - before.free
        assert result.kept_blocks == after.used
        assert after.referenced == before.referenced
        self.pins = {} if include_pinned else self.pins
        assert (after.soft_pinned, after.pins) == (0, len(self.pins))
        if not self.pins:
            assert (after.cached, after.tree_nodes, after.exact_entries) == (0, 0, 0)
            self.stored.clear()
            self.exact.clear()
        else:
            self.stored = {(self._namespace(pin), self._text(pin)) for pin in self.manager.pins.list()}
        for sequence in self.running:
            sequence.stale = True

    def _namespace(self, pin: Pin) -> str:
        assert pin.block.node is not None
        return pin.block.node.namespace

    def _text(self, pin: Pin) -> tuple[int, ...]:
        return tuple(token for each in self.manager.store.tree.chain(pin.block) for token in each.token_ids)

    @precondition(lambda self: self.stored)
    @rule(data=st.data(), ttl=ttls)
    def pin(self, data: st.DataObject, ttl: float) -> None:
        namespace, text = data.draw(st.sampled_from(sorted(self.stored)))
        text = text[: data.draw(st.integers(0, len(text)))]
        self.count += 1
        before = self.manager.stats()
        try:
            pin = self.manager.pins.pin(PinOrder(f"pin{self.count}", ttl), namespace, text)
        except PinLimitError:
            pin = None
        if pin is None:
            assert self.manager.stats() == before
        else:
            self.pins[pin.pin_id] = (namespace, text)
        assert self.manager.stats().pinned <= 0.25 * self.num_blocks

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        pin_id, _ = self.pins.popitem()
        assert self.manager.pins.unpin(pin_id)
        assert not self.manager.pins.unpin(pin_id)

    @rule(seconds=st.sampled_from([1.0, 50.0, 100_000.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.manager.expire()
        self.dropped = self.dropped or seconds > 24 * 3600
        self.pins = {pin.pin_id: self.pins[pin.pin_id] for pin in self.manager.pins.list()}

    @invariant()
    def pins_hold(self) -> None:
        """A hard-pinned prefix is always found; soft pins never keep more than their share."""
        if not hasattr(self, "manager"):
            return
        for namespace, text in self.pins.values():
            match = self.manager.store.tree.find_prefix(namespace, text)
            assert len(match.blocks) * self.size + match.tail_tokens == len(text)
            assert self.manager.store.windows.reach(match.matched, len(text)) >= len(text) - len(text) % self.size
        assert self.manager.stats().soft_pinned <= 0.5 * self.num_blocks

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check_integrity()
        for sequence in self.running:
            table = self.manager.block_ids(sequence.info.request_id)
            assert len(table) * self.size >= len(sequence.tokens)
            assert sequence.copies or self.memory.holds(table, sequence, sequence.computed)
            if self.window and not sequence.copies:
                parts = self.manager.window_block_ids(sequence.info.request_id)
                start = self._first_seen(sequence.computed)
                assert self.window_memory.holds(parts, sequence, sequence.computed, start)
        assert self.manager.stats().referenced_slots_used == self._used_slots()

    def _used_slots(self) -> int:
        used: dict[int, int] = {}
        for sequence in self.running:
            for index, block_id in enumerate(self.manager.block_ids(sequence.info.request_id)):
                used[block_id] = min(self.size, len(sequence.tokens) - index * self.size)
        return sum(used.values())

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        for sequence in self.running:
            self.manager.free(sequence.info.request_id)
        while self.pins:
            self.unpin()
        self.manager.check_integrity()
        stats = self.manager.stats()
        assert (stats.referenced, stats.free + stats.cached) == (0, self.num_blocks)
        assert stats.window is None or stats.window.free + stats.window.cached == stats.window.total


TestCache = CacheMachine.TestCase
TestCache.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
