import itertools
import sys
from collections.abc import Callable, Iterable, Sequence

import pytest

from openai_kv.cache.hit import CacheHit, HitKind
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.pin import Pin, PinLimits
from openai_kv.cache.pins import share_of
from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.errors import PinLimitError
from openai_kv.request import Breakpoint, PinOrder, RequestInfo, Retention

MINUTE = 60.0
DEFAULT = Retention()


class Cache(KVCacheManager):
    """Blocks of 4; `run` is a request that comes, computes `text`, and leaves. `now` is its clock."""

    def __init__(self, num_blocks: int = 16, policy: EvictionPolicy | None = None, **limits: float) -> None:
        self.now = 0.0
        super().__init__(
            num_blocks=num_blocks,
            block_size=4,
            policy=policy or LRUPolicy(),
            num_hidden_slots=4,
            clock=lambda: self.now,
            pin_limits=PinLimits(**limits),  # type: ignore[arg-type]
        )
        self._names = itertools.count()

    def start(self, text: Sequence[int], retention: Retention = DEFAULT) -> tuple[RequestInfo, CacheHit]:
        info = RequestInfo(f"r{next(self._names)}", len(text), retention=retention)
        hit = self.lookup(text, info)
        assert self.admit(info, hit, len(text)) is not None
        return info, hit

    def run(
        self, text: Sequence[int], *ends: tuple[int, float], explicit: bool = False, in_memory: bool = False
    ) -> CacheHit:
        """`ends`: breakpoints, as tokens and seconds."""
        self.expire()
        breakpoints = tuple(Breakpoint(*end) for end in ends)
        info, hit = self.start(text, Retention(explicit, breakpoints, in_memory))
        self.end(info, text)
        return hit

    def end(self, info: RequestInfo, text: Sequence[int]) -> None:
        self.cache_blocks(info.request_id, text, with_tail=True)
        self.pins.keep(info, text)
        self.free(info.request_id)
        self.finish(info)
        self.check_integrity()

    def flood(self, prompts: Iterable[int], length: int = 20) -> None:
        for number in prompts:
            self.run(range(1000 * number, 1000 * number + length))

    def cached(self, text: Sequence[int]) -> int:
        """How many leading tokens of `text` are cached."""
        return self.lookup([*text, -1], RequestInfo("?", len(text) + 1)).num_tokens

    def pin(self, text: Sequence[int], ttl: float = MINUTE) -> Pin:
        pin = self.pins.pin(PinOrder(f"pin{next(self._names)}", ttl), "", text)
        assert pin is not None
        self.check_integrity()
        return pin


# Hard pins


def test_a_hard_pin_survives_any_flood_until_it_is_deleted() -> None:
    cache = Cache(num_blocks=8)
    cache.run(range(8))
    pin = cache.pin(range(8))
    cache.flood(range(1, 9), length=24)
    assert cache.cached(range(8)) == 8
    info = RequestInfo("large", 28)
    assert cache.admit(info, cache.lookup(range(50, 78), info), 28) is None
    assert cache.pins.unpin(pin.pin_id)
    assert not cache.pins.unpin(pin.pin_id)
    assert cache.admit(info, cache.lookup(range(50, 78), info), 28) == ()
    cache.check_integrity()


def test_a_hard_pin_ends_with_its_time_whatever_hits_it() -> None:
    cache = Cache()
    cache.run(range(10))
    pin = cache.pin(range(10))
    cache.now = MINUTE - 1
    cache.run([*range(10), 70])
    cache.run([*range(9), 71])
    assert (pin.hits, pin.expires_at, cache.pins.list()) == (1, MINUTE, [pin])
    cache.now = MINUTE
    assert cache.pins.list() == []
    assert (cache.stats().pinned, cache.stats().pins) == (0, 0)
    cache.check_integrity()


def test_pins_overlap_by_their_own_count() -> None:
    cache = Cache()
    cache.run(range(12))
    short, long, twin = cache.pin(range(4)), cache.pin(range(12)), cache.pin(range(12))
    assert [block.pin_count for block in cache.store.tree.chain(long.block)] == [3, 2, 2]
    assert (cache.stats().pinned, cache.stats().pins) == (3, 3)
    cache.pins.unpin(long.pin_id)
    assert cache.stats().pinned == 3
    cache.pins.unpin(twin.pin_id)
    assert cache.stats().pinned == 1
    cache.flood(range(1, 5))
    assert cache.cached(range(12)) == 4
    cache.pins.unpin(short.pin_id)
    cache.check_integrity()


def test_missing_kv_is_not_pinned_and_an_order_is_carried_out_once() -> None:
    cache = Cache()
    order = PinOrder("pin", MINUTE, "label")
    assert cache.pins.pin(order, "", range(6)) is None
    info, _ = cache.start(range(6), Retention(pin=order))
    cache.end(info, range(6))
    (pin,) = cache.pins.list()
    assert cache.pins.pin(order, "", range(6)) is pin
    assert (pin.label, pin.num_tokens, cache.stats().pinned) == ("label", 6, 2)
    assert cache.pins.pin(PinOrder("other", MINUTE), "salt", range(6)) is None


def test_limits_of_hard_pins() -> None:
    cache = Cache(max_pins=2)
    cache.run(range(20))
    with pytest.raises(PinLimitError, match="At most 4 blocks"):
        cache.pin(range(20))
    with pytest.raises(PinLimitError, match="this needs 5 more"):
        cache.pins.pin(PinOrder("missing", MINUTE), "", range(100, 120))
    cache.pin(range(16))
    cache.pin(range(12))  # takes no more blocks
    with pytest.raises(PinLimitError, match="2 pins"):
        cache.pin(range(12))
    info, _ = cache.start(range(4), Retention(pin=PinOrder("late", MINUTE)))
    cache.end(info, range(4))  # a refused order does not disturb the request
    assert cache.stats().pins == 2


def test_a_pinned_tail_that_is_to_grow_counts_once() -> None:
    cache = Cache(max_pinned_fraction=0.25)
    cache.run(range(6))
    cache.pin(range(6))
    info, _ = cache.start(range(16), Retention(pin=PinOrder("long", MINUTE)))
    assert cache.pins.pin(PinOrder("long", MINUTE), "", range(16)) is None  # still to be computed, and there is room
    cache.end(info, range(16))
    assert [pin.pin_id for pin in cache.pins.list()][-1] == "long"
    assert cache.stats().pinned == 4


def test_reset_keeps_hard_pins_unless_told() -> None:
    cache = Cache()
    cache.run(range(10), (8, MINUTE))
    cache.run(range(50, 60), (8, MINUTE))
    cache.pin(range(6))
    result = cache.reset()
    assert (result.freed_blocks, result.kept_blocks, cache.stats().soft_pinned) == (4, 2, 0)
    assert (cache.cached(range(10)), cache.cached(range(50, 60))) == (8, 0)
    assert cache.reset(include_pinned=True).kept_blocks == 0
    assert (cache.stats().free, cache.pins.list()) == (16, [])
    cache.check_integrity()


@pytest.mark.parametrize("hard", [True, False])
def test_a_pinned_tail_moves_to_the_longer_block_that_takes_its_place(hard: bool) -> None:
    cache = Cache(num_blocks=8)
    cache.run(range(6), *([] if hard else [(6, MINUTE)]))
    if hard:
        cache.pin(range(6))
    cache.run([*range(6), 60])
    assert cache.stats().cached == 2
    assert (cache.stats().pinned, cache.stats().soft_pinned) == ((2, 0) if hard else (0, 2))
    cache.flood(range(1, 5))
    assert cache.cached(range(6)) == 6


def test_a_running_requests_tail_is_pinned_wherever_its_content_goes() -> None:
    cache = Cache()
    info, _ = cache.start(range(6))
    cache.cache_blocks(info.request_id, range(6), with_tail=True)
    pin = cache.pin(range(6))
    assert cache.allocate_slots(info.request_id, 8)
    cache.end(info, [*range(6), 60, 61])
    cache.run([*range(6), 70])
    assert (cache.cached([*range(6), 60, 61]), pin.block.token_ids) == (8, (4, 5, 60, 61))
    other, _ = cache.start(range(80, 86))
    cache.cache_blocks(other.request_id, range(80, 86), with_tail=True)
    pin = cache.pin(range(80, 86))
    cache.run(range(80, 90))
    assert cache.allocate_slots(other.request_id, 7)
    cache.end(other, range(80, 87))
    assert pin.block.token_ids == (84, 85, 86, 87)


# Soft pins


class Seen(LRUPolicy):
    """Notes the sets it chooses from."""

    name = "seen"

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def select_victim(self, candidates: object) -> BlockInfo:
        self.sizes.append(len(candidates))  # type: ignore[arg-type]
        return super().select_victim(candidates)  # type: ignore[arg-type]


def test_a_soft_pin_survives_a_flood_until_its_time_is_over() -> None:
    cache = Cache()
    cache.run(range(18), (18, MINUTE))
    assert (cache.stats().soft_pinned, cache.stats().cached) == (5, 5)
    cache.flood(range(1, 20), length=32)
    assert cache.cached(range(18)) == 18
    cache.now = MINUTE
    cache.flood(range(20, 40), length=32)
    assert (cache.cached(range(18)), cache.stats().soft_pinned) == (0, 0)


def test_a_hit_on_the_whole_prefix_restarts_its_time() -> None:
    cache = Cache()
    cache.run(range(18), (17, MINUTE))
    (pin,) = cache.store.pins.soft
    cache.now = 30.0
    cache.run([*range(16), 99])
    assert (pin.hits, pin.expires_at) == (0, MINUTE)
    cache.run([*range(17), 98])
    assert (pin.hits, pin.expires_at) == (1, 90.0)
    cache.now = 80.0
    cache.run(range(17), (17, MINUTE))
    assert (pin.expires_at, list(cache.store.pins.soft)) == (140.0, [pin])
    cache.run(range(17), (17, 1.0))
    assert pin.expires_at == 140.0
    cache.now = 139.0
    cache.expire()
    assert cache.stats().soft_pinned == 5


def test_soft_pins_give_way_last_and_the_first_to_expire_first() -> None:
    policy = Seen()
    cache = Cache(num_blocks=8, policy=policy)
    cache.run(range(8), (8, 2 * MINUTE))
    cache.run(range(50, 58), (8, MINUTE))
    cache.run(range(70, 78))
    assert cache.stats().soft_pinned == 4
    info, _ = cache.start(range(100, 120))
    assert policy.sizes == [1, 1, 1]
    assert (cache.cached(range(8)), cache.cached(range(50, 58))) == (8, 4)
    cache.check_integrity()
    assert cache.allocate_slots(info.request_id, 28)
    assert (cache.cached(range(8)), cache.cached(range(50, 58))) == (4, 0)
    assert [pin.num_tokens for pin in cache.store.pins.soft] == [4]
    assert cache.stats().evictions_by_policy == {"seen": 5}
    cache.free(info.request_id)
    cache.check_integrity()


def test_what_is_left_of_a_prefix_stays_pinned() -> None:
    cache = Cache(num_blocks=8)
    cache.run(range(16), (16, MINUTE), (8, MINUTE))
    info, _ = cache.start(range(100, 124))
    cache.free(info.request_id)
    assert [(pin.num_tokens, pin.hits) for pin in cache.store.pins.soft] == [(8, 0)]
    assert (cache.cached(range(16)), cache.stats().soft_pinned) == (8, 2)
    cache.flood(range(1, 4))
    assert cache.cached(range(16)) == 8
    cache.run(range(16), (16, MINUTE))
    assert cache.stats().soft_pinned == 4


def test_beyond_their_share_the_first_to_expire_lose_their_protection() -> None:
    cache = Cache()
    cache.run(range(20), (20, MINUTE))
    cache.run(range(50, 66), (16, 2 * MINUTE))
    assert cache.stats().soft_pinned == 4
    assert (cache.cached(range(20)), cache.stats().cached) == (20, 9)
    cache.run(range(70, 90), (20, 2 * MINUTE), (12, 2 * MINUTE))
    assert [pin.num_tokens for pin in cache.store.pins.soft] == [16, 12]
    cache.check_integrity()


def test_every_block_can_go_in_the_end() -> None:
    cache = Cache(num_blocks=8, soft_pin_fraction=1.0)
    cache.run(range(32), (32, MINUTE), (13, MINUTE))
    cache.run(range(100, 132))
    assert (cache.stats().soft_pinned, cache.cached(range(32))) == (0, 0)


class RefuseAll(LRUPolicy):
    name = "refuse"

    def admit(self, block: BlockInfo) -> bool:
        return False


def test_a_pin_keeps_what_the_policy_would_not_and_no_longer() -> None:
    cache = Cache(policy=RefuseAll())
    cache.run(range(10), (6, MINUTE))
    assert (cache.cached(range(10)), cache.stats().cached) == (8, 2)
    cache.now = MINUTE
    cache.expire()
    cache.check_integrity()
    assert cache.stats().cached == 0
    cache.run(range(10), (10, MINUTE))
    info, _ = cache.start(range(100, 160))
    assert cache.stats().soft_pinned == 1
    cache.free(info.request_id)
    cache.check_integrity()


# Explicit mode


def test_explicit_mode_stores_up_to_the_last_breakpoint_and_no_further() -> None:
    cache = Cache()
    text = range(23)
    assert cache.run(text, (6, MINUTE), (14, MINUTE), explicit=True).kind is HitKind.MISS
    assert (cache.cached(text), cache.stats().cached, cache.stats().soft_pinned) == (14, 4, 4)
    again = cache.run([*text, 90], (6, MINUTE), (14, MINUTE), explicit=True)
    assert (again.kind, again.num_tokens, cache.stats().cached) == (HitKind.PARTIAL, 14, 4)
    cache.run([*text, 80])
    assert cache.run(text, (6, MINUTE), explicit=True).num_tokens == 22


def test_explicit_mode_without_a_breakpoint_neither_reads_nor_writes() -> None:
    cache = Cache()
    cache.run(range(10))
    before = cache.stats()
    assert cache.run(range(10), explicit=True).num_tokens == 0
    after = cache.stats()
    assert (after.free, after.cached, after.tree_nodes) == (before.free, before.cached, before.tree_nodes)
    info = RequestInfo("e", 10, retention=Retention(explicit=True))
    assert cache.reserve_hidden_slot(range(10), info) is None


# What is unused for a day


def test_what_is_unused_for_a_day_goes_unless_kept_in_memory() -> None:
    cache = Cache()
    day = 24 * 3600.0
    cache.run(range(10))
    cache.run(range(50, 60), in_memory=True)
    cache.run([*range(50, 60), 0, 1, 2])
    cache.now = day - 1
    cache.run([*range(4), 99])
    cache.run(range(80, 90), (8, 2 * day))
    assert (cache.cached(range(10)), cache.cached(range(50, 60))) == (10, 10)
    cache.now = day
    cache.expire()
    cache.check_integrity()
    assert (cache.cached(range(10)), cache.cached(range(50, 60)), cache.cached([*range(50, 60), 0, 1])) == (4, 8, 8)
    cache.now = 2 * day
    cache.expire()
    assert (cache.cached(range(10)), cache.cached(range(50, 60)), cache.cached(range(80, 90))) == (0, 8, 8)
    assert (cache.stats().eviction_count, cache.stats().expired_blocks) == (0, 7)
    cache.check_integrity()


def test_little_is_remembered_of_blocks_that_are_gone() -> None:
    cache = Cache(num_blocks=8)
    cache.flood(range(1, 100))
    assert len(cache.store._last_use._heap) <= 2 * 8 + 16


# Costs


def count_calls(work: Callable[[], object]) -> int:
    """How many functions, Python's own ones too, `work` calls."""
    number = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return number


def calls_with(num_pins: int) -> tuple[int, int]:
    """Of a request that restarts a pin, and of one whose block a soft-pinned one has to make room for."""
    cache = Cache(num_blocks=2 * num_pins, soft_pin_fraction=1.0)
    for number in range(num_pins):
        cache.run(range(100 * number, 100 * number + 5), (5, MINUTE + number))
    info = RequestInfo("hit", 6)
    restart = count_calls(lambda: cache.store.pins.touch(cache.lookup([*range(5), 5], info).matched, 5))
    return restart, count_calls(lambda: cache.start(range(50, 54)))


def test_neither_restarting_a_pin_nor_giving_one_up_grows_with_the_pins() -> None:
    few, many = calls_with(8), calls_with(128)
    assert many[0] <= few[0] + 20
    assert many[1] <= few[1] + 40


def test_shares_are_whole_blocks() -> None:
    assert [share_of(0.29, 100), share_of(0.25, 7), share_of(1.0, 3)] == [29, 1, 3]
