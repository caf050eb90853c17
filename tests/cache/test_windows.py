"""Window parts: who holds one, what a prefix hit needs of them, and in which order they go. Blocks of 4 tokens."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_kv.cache.block import Block
from openai_kv.cache.hit import CacheHit, HitKind
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.pin import Pin, PinLimits
from openai_kv.cache.window_pool import WindowPool
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.errors import PinLimitError
from openai_kv.metrics import WindowStats
from openai_kv.request import Breakpoint, PinOrder, RequestInfo, Retention

SIZE = 4


class Cache(KVCacheManager):
    """Runs whole requests in steps of one block, as the scheduler does."""

    def __init__(self, window: int, num_parts: int = 100, num_blocks: int = 100, max_pinned: float = 1.0) -> None:
        super().__init__(
            num_blocks=num_blocks,
            block_size=SIZE,
            policy=LRUPolicy(),
            num_hidden_slots=4,
            pin_limits=PinLimits(max_pinned_fraction=max_pinned),
            window=window,
            num_window_blocks=num_parts + 1,
        )

    def start(self, name: str, text: Sequence[int], retention: Retention | None = None) -> CacheHit:
        """As far as its prompt is computed; it goes on running."""
        info = RequestInfo(name, len(text), retention=retention or Retention())
        hit = self.lookup(text, info)
        assert self.admit(info, hit, len(text), window_tokens=hit.num_tokens) is not None
        for end in (*range((hit.num_tokens // SIZE + 1) * SIZE, len(text), SIZE), len(text)):
            assert self.allocate_slots(name, end)
            self.cache_blocks(name, text[:end], with_tail=end == len(text))
            if end == len(text):
                self.pins.keep(info, text)
            self.slide(name, end)
            self.check_integrity()
        return hit

    def run(self, name: str, text: Sequence[int], retention: Retention | None = None) -> CacheHit:
        hit = self.start(name, text, retention)
        self.free(name)
        self.check_integrity()
        return hit

    def run_exact(self, name: str, text: Sequence[int]) -> CacheHit:
        slot = self.reserve_hidden_slot(text, RequestInfo(name, len(text)))
        hit = self.start(name, text)
        if slot is not None:
            self.store_exact(name, text, slot)
        self.free(name)
        return hit

    @property
    def window(self) -> WindowStats:
        stats = self.stats().window
        assert stats is not None
        return stats


def test_without_a_window_there_are_no_parts() -> None:
    cache = Cache(0, num_parts=-1)
    cache.run("a", range(40))
    assert cache.stats().window is None
    assert cache.run("b", range(41)).num_tokens == 40


def test_a_request_holds_its_window_and_the_rest_stays_cached() -> None:
    cache = Cache(window=10)
    cache.start("a", range(40))
    assert [*cache.window_block_ids("a")[:7]] == [0] * 7
    assert all(cache.window_block_ids("a")[7:]) and len(cache.window_block_ids("a")) == 10
    assert (cache.window.referenced, cache.window.cached) == (3, 7), "position 40 sees 31 .. 39, in blocks 7 .. 9"
    cache.free("a")
    assert (cache.window.referenced, cache.window.cached) == (0, 10)


def test_what_is_not_cached_is_freed_at_once() -> None:
    cache = Cache(window=10)
    cache.start("a", range(40), Retention(explicit=True, breakpoints=(Breakpoint(8, 60.0),)))
    assert (cache.window.referenced, cache.window.cached, cache.window.free) == (3, 2, 95)


def test_a_hit_needs_the_last_window_only() -> None:
    cache = Cache(window=10, num_parts=5)
    cache.run("a", range(40))
    assert cache.window.evictions == 5
    hit = cache.run("b", [*range(40), 90, 91])
    assert (hit.kind, hit.num_tokens) == (HitKind.RADIX, 40)
    assert cache.run("c", [*range(20), 92]).num_tokens == 0, "of the middle nothing is left that can be hit"


def test_a_hole_shortens_a_hit_to_where_all_is_seen() -> None:
    cache = Cache(window=6)
    cache.start("a", range(40))
    chain = cache.store.tree.find_prefix("", tuple(range(40))).blocks
    for index in (6, 2):
        cache.store.windows.drop(chain[index])
    cache.free("a")
    reach = {end: cache.lookup([*range(end), 99], RequestInfo("b", end + 1)).num_tokens for end in (40, 32, 31, 28, 12)}
    assert reach == {40: 40, 32: 24, 31: 24, 28: 24, 12: 8}


@given(st.integers(1, 20), st.lists(st.booleans(), max_size=12), st.integers(0, 3))
def test_no_longer_prefix_could_be_used(window: int, parts: list[bool], missing: int) -> None:
    blocks = [Block(number) for number in range(len(parts))]
    for block, has_part in zip(blocks, parts, strict=True):
        block.window_id = int(has_part)
    num_tokens = max(0, len(parts) * SIZE - missing)

    def usable(end: int) -> bool:
        return all(parts[at // SIZE] for at in range(max(0, end - window + 1) // SIZE * SIZE, end))

    longest = max(end for end in range(num_tokens + 1) if usable(end))
    assert WindowPool(window, 50, SIZE).reach(blocks, num_tokens) == longest


def test_a_partial_tail_is_copied_in_both_pools() -> None:
    cache = Cache(window=10)
    cache.run("a", range(18))
    info = RequestInfo("b", 19)
    hit = cache.lookup([*range(18), 99], info)
    (copy,) = cache.admit(info, hit, 19) or ()
    assert (hit.kind, copy.num_tokens) == (HitKind.PARTIAL, 2)
    assert hit.tail is not None and copy.window_source == hit.tail.window_id != copy.window_target
    assert copy.window_target == cache.window_block_ids("b")[4]


def test_an_exact_hit_needs_the_window_before_its_end() -> None:
    cache = Cache(window=10, num_parts=5)
    cache.run_exact("a", range(18))
    assert cache.run_exact("b", range(18)).kind is HitKind.EXACT
    cache.run("c", range(100, 120))
    assert cache.run_exact("d", range(18)).kind is HitKind.MISS
    assert cache.run_exact("e", range(18)).kind is HitKind.EXACT, "its lost parts came back with the computed ones"


def test_what_is_computed_anew_becomes_the_trees_own() -> None:
    cache = Cache(window=10, num_parts=5)
    cache.run("a", range(18))
    cache.run("c", range(100, 120))
    blocks = cache.stats().cached
    cache.start("d", range(18))
    cache.free("d")
    assert cache.stats().cached == blocks, "also the partial tail"
    assert cache.run("e", [*range(18), 99]).num_tokens == 18


def test_parts_left_on_the_way_go_before_ends_of_conversations() -> None:
    cache = Cache(window=10, num_parts=12)
    for start in (1000, 2000):
        cache.run(f"{start}", range(start, start + 20))
    cache.run("long", range(200))
    for start in (1000, 2000):
        assert cache.run(f"again {start}", [*range(start, start + 20), 5]).num_tokens == 20


def test_where_look_ups_end_is_learnt() -> None:
    """A shared beginning that is longer than a window: computed anew once, it is kept like an end."""
    cache = Cache(window=10, num_parts=12)
    hits = [cache.run(f"{n}", [*range(40), *range(n * 1000, n * 1000 + 40)]).num_tokens for n in range(1, 6)]
    assert hits == [0, 0, 40, 40, 40]


def test_a_full_group_is_told_before_anything_changes() -> None:
    cache = Cache(window=10, num_parts=4)
    cache.start("a", range(12))
    before = cache.stats()
    info = RequestInfo("b", 8)
    assert cache.admit(info, cache.lookup(range(50, 58), info), 8) is None
    assert not cache.allocate_slots("a", 21)
    assert cache.stats() == before
    assert cache.admit(info, cache.lookup(range(50, 58), info), 8, window_tokens=4) == ()


def pin(cache: Cache, text: Sequence[int], name: str = "pin") -> Pin | None:
    return cache.pins.pin(PinOrder(name, 60.0), "", text)


def test_a_hard_pin_keeps_a_hit_possible() -> None:
    cache = Cache(window=10, num_parts=12)
    cache.run("a", range(42))
    assert pin(cache, range(42)) is not None
    assert (cache.window.pinned, cache.window.pinned_idle) == (4, 4), "for 42 tokens, and for the 40 in whole blocks"
    for start in range(1000, 6000, 1000):
        cache.run(f"{start}", range(start, start + 60))
    assert cache.run("b", [*range(42), 99]).num_tokens == 42
    cache.pins.unpin("pin")
    cache.check_integrity()
    assert cache.window.pinned == 0


def test_a_pin_without_its_parts_is_computed_first() -> None:
    cache = Cache(window=10, num_parts=12)
    cache.run("a", range(42))
    cache.run("b", range(1000, 1100))
    cache.run("c", range(2000, 2100))
    cache.run("d", range(3000, 3100))
    assert pin(cache, range(42)) is None
    cache.run("e", range(42), Retention(pin=PinOrder("pin", 60.0)))
    assert pin(cache, range(42)) is not None
    assert cache.window.pinned == 4


def test_pins_have_a_share_of_the_parts_too() -> None:
    cache = Cache(window=10, num_parts=12, max_pinned=0.5)
    for name, start in (("a", 0), ("b", 1000)):
        cache.run(name, range(start, start + 20))
    assert pin(cache, range(20), "one") is not None
    assert cache.window.pinned == 3
    assert pin(cache, range(1000, 1020), "two") is not None
    with pytest.raises(PinLimitError, match="At most 6 blocks of the window"):
        pin(cache, range(2000, 2020), "three")


def test_parts_that_soft_pins_want_go_last() -> None:
    cache = Cache(window=10, num_parts=12)
    cache.run("marked", range(30), Retention(breakpoints=(Breakpoint(20, 60.0),)))
    for start in range(1000, 6000, 1000):
        cache.run(f"{start}", range(start, start + 60))
    assert cache.run("b", [*range(20), 99]).num_tokens == 20


def test_a_reset_leaves_running_requests_their_parts() -> None:
    cache = Cache(window=10)
    cache.start("a", range(40))
    cache.reset()
    cache.check_integrity()
    assert (cache.window.referenced, cache.window.cached) == (3, 0)
    cache.slide("a", 45)
    cache.check_integrity()
    cache.free("a")
    assert cache.window.free == 100
