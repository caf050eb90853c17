from collections.abc import Callable

import pytest

from openai_kv.cache.manager import KVCacheManager
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.errors import IntegrityError
from openai_kv.request import Breakpoint, PinOrder, RequestInfo, Retention


@pytest.fixture
def cache() -> KVCacheManager:
    """Two branches, one of them still running, an exact entry, a free slot, a hard pin and a soft one."""
    cache = KVCacheManager(num_blocks=16, block_size=4, policy=LRUPolicy(), num_hidden_slots=2)
    for name, text in (("done", [*range(8), 60, 61]), ("runs", [*range(8), 70, 71])):
        info = RequestInfo(name, len(text))
        assert cache.admit(info, cache.lookup(text, info), len(text)) is not None
        slot = cache.reserve_hidden_slot(text, info)
        cache.cache_blocks(name, text, with_tail=True)
        assert slot is not None
        cache.store_exact(name, text, slot)
    cache.free("done")
    cache.pins.pin(PinOrder("pin", 60.0), "", range(8))
    soft = Retention(breakpoints=(Breakpoint(9, 60.0),))
    cache.pins.keep(RequestInfo("soft", 9, retention=soft), [*range(8), 60])
    info = RequestInfo("other", 4)
    assert cache.admit(info, cache.lookup(range(90, 94), info), 4) is not None
    cache.cache_blocks("other", range(90, 94), with_tail=False)
    cache.free("other")
    return cache


def test_sound_books_pass(cache: KVCacheManager) -> None:
    cache.check_integrity()
    cache.free("runs")
    cache.check_integrity()


def lose_a_block(cache: KVCacheManager) -> None:
    cache.store.pool._free.pop()


def free_a_block_twice(cache: KVCacheManager) -> None:
    cache.store.pool._free.append(cache.store.pool._free[0])


def free_a_cached_block(cache: KVCacheManager) -> None:
    cache.store.pool._free.append(next(iter(cache.store.evictor.candidates.values())))


def reference_without_holder(cache: KVCacheManager) -> None:
    cache.store.pool.acquire(next(iter(cache.store.evictor.candidates.values())))


def holder_without_reference(cache: KVCacheManager) -> None:
    cache.store.pool.release(cache._allocations["runs"].blocks[0])


def miscount_references(cache: KVCacheManager) -> None:
    cache.store.pool.num_referenced += 1


def miscount_nodes(cache: KVCacheManager) -> None:
    cache.store.tree.num_nodes += 1


def miscount_pins(cache: KVCacheManager) -> None:
    cache.store.pool.num_pinned_idle += 1


def miscount_soft_pins(cache: KVCacheManager) -> None:
    cache.store.pool.num_soft_pinned += 1


def pin_without_counting(cache: KVCacheManager) -> None:
    cache.store.pins.hard[0].block.pin_count += 1


def forget_who_is_held_back(cache: KVCacheManager) -> None:
    cache.store.pins.held_back.clear()


def forget_an_id(cache: KVCacheManager) -> None:
    cache.store.pins.by_id.clear()


def lose_a_pin(cache: KVCacheManager) -> None:
    cache.store.pins.soft[0].block.pins = ()


def move_the_end_of_a_pin(cache: KVCacheManager) -> None:
    cache.store.pins.soft[0].num_tokens = 12


def cut_a_chain_off(cache: KVCacheManager) -> None:
    del cache.store.tree.roots[""]


def unsort_children(cache: KVCacheManager) -> None:
    next(node for node in cache.store.tree.nodes() if node.children).sorted_keys.reverse()


def change_a_key(cache: KVCacheManager) -> None:
    next(iter(cache.store.evictor.candidates.values())).token_ids = (1,)


def forget_a_candidate(cache: KVCacheManager) -> None:
    cache.store.evictor.candidates.clear()


def swap_a_table(cache: KVCacheManager) -> None:
    cache._allocations["runs"].block_ids.reverse()


def shorten_a_table(cache: KVCacheManager) -> None:
    cache._allocations["runs"].num_tokens = 1


def lose_a_slot(cache: KVCacheManager) -> None:
    cache.store.exact.reserved.add(7)


def renew_a_view(cache: KVCacheManager) -> None:
    block = next(iter(cache.store.evictor.candidates.values()))
    block.info = type(block.info)(block)


def move_an_entry(cache: KVCacheManager) -> None:
    entry = next(iter(cache.store.exact.entries.values()))
    cache.store.exact.move(entry.tail, cache._allocations["runs"].blocks[0])


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_block,
        free_a_block_twice,
        free_a_cached_block,
        reference_without_holder,
        holder_without_reference,
        miscount_references,
        miscount_nodes,
        miscount_pins,
        miscount_soft_pins,
        pin_without_counting,
        forget_who_is_held_back,
        forget_an_id,
        lose_a_pin,
        move_the_end_of_a_pin,
        cut_a_chain_off,
        unsort_children,
        change_a_key,
        forget_a_candidate,
        swap_a_table,
        shorten_a_table,
        lose_a_slot,
        renew_a_view,
        move_an_entry,
    ],
)
def test_every_damage_is_found(cache: KVCacheManager, damage: Callable[[KVCacheManager], None]) -> None:
    damage(cache)
    with pytest.raises(IntegrityError):
        cache.check_integrity()
