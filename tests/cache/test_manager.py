from collections.abc import Sequence

import pytest

from openai_kv.cache.hit import CacheHit, HitKind
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import BlockInfo, EvictionPolicy
from openai_kv.default_plugins.h2o import H2OPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.metrics import EvictionStats, LookupStats
from openai_kv.outputs import BlockCopy
from openai_kv.request import RequestInfo


class Cache(KVCacheManager):
    """Runs whole requests: `run` is one that comes, computes `text`, and leaves."""

    def __init__(self, num_blocks: int = 64, block_size: int = 4, policy: EvictionPolicy | None = None) -> None:
        super().__init__(num_blocks=num_blocks, block_size=block_size, policy=policy or LRUPolicy(), num_hidden_slots=4)

    def start(self, name: str, text: Sequence[int], namespace: str = "", *, count: bool = True) -> CacheHit:
        info = RequestInfo(name, len(text), namespace)
        hit = self.lookup(text, info)
        assert self.admit(info, hit, len(text), count=count) is not None
        return hit

    def run(self, name: str, text: Sequence[int], namespace: str = "", *, exact: bool = False) -> CacheHit:
        hit = self.start(name, text, namespace)
        info = RequestInfo(name, len(text), namespace)
        slot = self.reserve_hidden_slot(text, info) if exact else None
        self.cache_blocks(name, text, with_tail=True)
        if slot is not None:
            self.store_exact(name, text, slot)
        self.free(name)
        self.check_integrity()
        return hit


def test_47_shared_tokens_are_a_hit_of_47_with_blocks_of_64() -> None:
    cache = Cache(block_size=64)
    cache.run("a", [*range(47), *range(100, 200)])
    hit = cache.run("b", [*range(47), *range(300, 400)])
    assert (hit.kind, hit.num_tokens, hit.tail_tokens, hit.blocks) == (HitKind.PARTIAL, 47, 47, ())


def test_hit_kinds_and_their_counts() -> None:
    cache = Cache()
    assert cache.run("a", range(10)).kind is HitKind.MISS
    assert cache.run("b", [*range(8), 90]).kind is HitKind.RADIX
    assert cache.run("c", [*range(6), 91]).kind is HitKind.PARTIAL
    assert cache.run("d", range(10), exact=True).num_tokens == 9
    assert cache.run("e", range(10)).kind is HitKind.EXACT
    stats = cache.stats()
    assert stats.hits == {"exact": 1, "radix": 1, "partial": 2}
    assert stats.hit_tokens == {"exact": 10, "radix": 8, "partial": 15}
    assert (stats.miss_count, stats.prompt_tokens) == (1, 10 + 9 + 7 + 10 + 10)


def test_a_whole_block_is_shared_and_the_tail_copied() -> None:
    cache = Cache()
    cache.start("a", range(10))
    cache.cache_blocks("a", range(10), with_tail=True)
    source = cache.block_ids("a")
    info = RequestInfo("b", 9)
    copies = cache.admit(info, cache.lookup([*range(7), 70, 71], info), 9)
    table = cache.block_ids("b")
    assert copies == (BlockCopy(source[1], table[1], 3),)
    assert (table[0], len(set(table) & set(source))) == (source[0], 1)
    blocks = cache.store.pool.blocks
    assert [(blocks[at].ref_count, blocks[at].hit_count) for at in source] == [(2, 1), (1, 1), (1, 0)]


def test_an_exact_hit_takes_all_tokens_and_the_hidden_slot() -> None:
    cache = Cache()
    cache.run("a", range(10), exact=True)
    hit = cache.run("b", range(10))
    assert (hit.kind, hit.num_tokens, len(hit.blocks), hit.tail_tokens) == (HitKind.EXACT, 10, 2, 2)
    assert hit.hidden_slot is not None
    cache.run("c", range(8), exact=True)
    hit = cache.run("d", range(8))
    assert (hit.kind, len(hit.blocks), hit.tail) == (HitKind.EXACT, 2, None)
    assert cache.run("e", range(10), "salt").kind is HitKind.MISS


def test_without_an_entry_the_last_token_is_left_to_compute() -> None:
    cache = Cache()
    cache.run("a", range(8))
    hit = cache.run("b", range(8))
    assert (hit.num_tokens, len(hit.blocks), hit.tail_tokens) == (7, 1, 3)
    assert cache.stats().duplicate_blocks == 1
    assert cache.stats().cached == 2


def test_the_exact_entry_survives_whatever_becomes_of_its_tail() -> None:
    cache = Cache()
    cache.run("a", range(6), exact=True)
    assert cache.run("b", [*range(6), 60]).num_tokens == 6
    assert cache.stats().cached == 2, "the shorter tail was absorbed by the longer one"
    assert cache.run("c", range(6)).kind is HitKind.EXACT


def test_the_exact_entry_moves_when_a_growing_tail_meets_its_like() -> None:
    cache = Cache()
    cache.start("a", range(6))
    slot = cache.reserve_hidden_slot(range(6), RequestInfo("a", 6))
    assert slot is not None
    cache.cache_blocks("a", range(6), with_tail=True)
    cache.store_exact("a", range(6), slot)
    own = cache.block_ids("a")[1]
    cache.run("b", range(8))
    assert cache.allocate_slots("a", 8)
    cache.cache_blocks("a", range(8), with_tail=False)
    assert cache.block_ids("a")[1] != own
    assert cache.lookup(range(6), RequestInfo("c", 6)).kind is HitKind.EXACT
    cache.free("a")
    cache.check_integrity()
    assert cache.stats().cached == 2


def test_two_that_compute_the_same_at_once_end_with_one_copy() -> None:
    cache = Cache()
    cache.start("a", range(10))
    cache.start("b", range(10))
    assert not set(cache.block_ids("a")) & set(cache.block_ids("b"))
    cache.cache_blocks("a", range(10), with_tail=False)
    cache.cache_blocks("b", range(10), with_tail=False)
    assert cache.block_ids("a")[:2] == cache.block_ids("b")[:2]
    assert cache.stats().duplicate_blocks == 2
    assert cache.stats().referenced == 4
    assert (cache.cache_write_tokens("a"), cache.cache_write_tokens("b")) == (8, 0)
    cache.check_integrity()


def test_block_tables_become_tensors_without_a_look_at_each_number() -> None:
    cache = Cache()
    cache.start("a", range(9))
    table = cache.block_ids("a")
    assert memoryview(table).format == "i"  # type: ignore[arg-type]
    assert table is not cache.block_ids("a"), "a step keeps its own"


def test_output_tokens_are_cached_and_the_next_turn_starts_there() -> None:
    cache = Cache()
    cache.start("a", range(6))
    text = list(range(6))
    for token in range(6, 11):
        text.append(token)
        assert cache.allocate_slots("a", len(text))
    cache.cache_blocks("a", text, with_tail=True)
    cache.free("a")
    assert cache.lookup([*text, 50, 51], RequestInfo("b", 13)).num_tokens == 11


def test_admission_is_all_or_nothing() -> None:
    cache = Cache(num_blocks=4)
    cache.run("old", range(8))
    cache.start("a", range(100, 108))
    before = cache.stats()
    info = RequestInfo("b", 14)
    text = [*range(8), *range(50, 56)]
    hit = cache.lookup(text, info)
    assert (len(hit.blocks), cache.admit(info, hit, 14)) == (2, None)
    assert cache.stats() == before
    assert not cache.allocate_slots("a", 17 + 1)
    assert cache.stats() == before
    assert cache.allocate_slots("a", 16)
    cache.check_integrity()


def test_evicts_the_shortfall_and_no_more_leaf_first() -> None:
    cache = Cache(num_blocks=5)
    cache.run("a", range(16))
    assert (cache.stats().free, cache.stats().cached) == (1, 4)
    cache.start("b", range(100, 112))
    stats = cache.stats()
    assert (stats.eviction_count, stats.free, stats.cached) == (2, 0, 2)
    assert cache.lookup(range(16), RequestInfo("c", 16)).num_tokens == 8


def test_the_copy_source_may_be_the_block_that_is_evicted() -> None:
    cache = Cache(num_blocks=1)
    cache.run("a", range(4))
    info = RequestInfo("b", 4)
    copies = cache.admit(info, cache.lookup([0, 1, 9, 9], info), 4)
    assert copies == (BlockCopy(0, 0, 2),)


def test_exact_entries_go_with_their_last_block() -> None:
    cache = Cache(num_blocks=2)
    cache.run("a", range(8), exact=True)
    assert cache.stats().exact_entries == 1
    cache.run("b", [7])
    assert cache.stats().exact_entries == 0
    assert cache.run("c", range(4)).num_tokens == 3


def test_written_tokens_are_prompt_tokens_newly_stored_once() -> None:
    cache = Cache()
    cache.start("a", range(10))
    assert cache.cache_write_tokens("a") == 0
    cache.cache_blocks("a", range(6), with_tail=True)
    assert cache.cache_write_tokens("a") == 6
    cache.free("a")
    cache.reset()
    cache.start("a", range(10), count=False)
    assert cache.allocate_slots("a", 13)
    cache.cache_blocks("a", range(13), with_tail=True)
    assert cache.cache_write_tokens("a") == 10
    cache.free("a")
    assert cache.cache_write_tokens("a") == 10
    cache.run("b", [*range(10), 50, 51])
    assert cache.cache_write_tokens("b") == 2
    cache.finish(RequestInfo("a", 10))
    assert cache.cache_write_tokens("a") == 0


def test_what_another_request_stored_first_is_not_written_by_us() -> None:
    cache = Cache()
    cache.start("a", range(8))
    cache.start("b", [*range(4), *range(50, 54)])
    for name, text in (("a", range(8)), ("b", [*range(4), *range(50, 54)])):
        cache.cache_blocks(name, text, with_tail=False)
    assert (cache.cache_write_tokens("a"), cache.cache_write_tokens("b")) == (8, 4)


def test_an_exact_hit_that_is_taken_keeps_its_entry_young() -> None:
    cache = Cache()
    for first in range(4):
        cache.run(f"a{first}", [first, 9], exact=True)
    assert cache.run("again", [0, 9]).kind is HitKind.EXACT
    cache.run("new", [7, 9], exact=True)
    kinds = [cache.lookup([first, 9], RequestInfo("?", 2)).kind for first in (0, 1, 2, 3, 7)]
    assert kinds == [HitKind.EXACT, HitKind.PARTIAL, HitKind.EXACT, HitKind.EXACT, HitKind.EXACT]


@pytest.mark.parametrize("length", [8, 10])
@pytest.mark.parametrize("reset", [False, True])
def test_a_prompt_that_is_not_in_the_tree_is_not_stored_as_exact(length: int, reset: bool) -> None:
    cache = Cache()
    cache.start("a", range(length))
    slot = cache.reserve_hidden_slot(range(length), RequestInfo("a", length))
    assert slot is not None
    if reset:
        cache.cache_blocks("a", range(length), with_tail=True)
        cache.reset()
    cache.store_exact("a", range(length), slot)
    cache.check_integrity()
    assert (cache.stats().exact_entries, len(cache.store.exact.free_slots)) == (0, 4)


def test_a_running_requests_tail_gives_way_to_a_longer_one_and_comes_back() -> None:
    cache = Cache()
    cache.start("a", range(6))
    cache.cache_blocks("a", range(6), with_tail=True)
    cache.run("b", [*range(6), 60])
    assert cache.stats().referenced == 2
    assert cache.allocate_slots("a", 7)
    cache.cache_blocks("a", [*range(6), 70], with_tail=True)
    cache.free("a")
    cache.check_integrity()
    assert cache.lookup([*range(6), 70, 71], RequestInfo("c", 8)).num_tokens == 7
    assert cache.stats().cached == 3


def test_coming_back_from_preemption_counts_nothing() -> None:
    cache = Cache()
    cache.start("a", range(10))
    cache.cache_blocks("a", range(10), with_tail=True)
    cache.free("a")
    before = cache.stats()
    assert cache.start("a", range(10), count=False).num_tokens == 9
    after = cache.stats()
    assert (after.hits, after.miss_count, after.prompt_tokens) == (before.hits, before.miss_count, before.prompt_tokens)


def test_reset_forgets_everything_and_disturbs_nobody() -> None:
    cache = Cache()
    cache.run("old", range(50, 58))
    cache.start("a", range(10))
    slot = cache.reserve_hidden_slot(range(10), RequestInfo("a", 10))
    assert slot is not None
    cache.cache_blocks("a", range(10), with_tail=True)
    table = cache.block_ids("a")
    result = cache.reset()
    assert (result.freed_blocks, result.kept_blocks) == (2, 3)
    cache.check_integrity()
    assert cache.run("b", range(10)).kind is HitKind.MISS
    assert cache.allocate_slots("a", 12)
    cache.cache_blocks("a", range(12), with_tail=True)
    cache.store_exact("a", range(10), slot)
    assert cache.block_ids("a") == table
    cache.free("a")
    cache.check_integrity()
    assert (cache.stats().referenced, cache.stats().exact_entries) == (0, 0)
    assert cache.reset().kept_blocks == 0
    assert cache.stats().free == 64


class RefuseAll(LRUPolicy):
    name = "refuse"

    def admit(self, block: BlockInfo) -> bool:
        return False


def test_what_the_policy_does_not_admit_is_freed_with_its_last_reference() -> None:
    cache = Cache(policy=RefuseAll())
    cache.start("a", range(10))
    cache.cache_blocks("a", range(10), with_tail=True)
    assert cache.lookup(range(10), RequestInfo("b", 10)).num_tokens == 9
    cache.free("a")
    cache.check_integrity()
    assert (cache.stats().free, cache.stats().eviction_count) == (64, 0)


class Recorder(LRUPolicy):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def on_insert(self, block: BlockInfo) -> None:
        self.heard.append(f"insert {block.depth}")

    def on_access(self, block: BlockInfo) -> None:
        super().on_access(block)
        self.heard.append(f"access {block.depth}")

    def on_miss(self, info: RequestInfo, depth: int) -> None:
        self.heard.append(f"miss {info.request_id} {depth}")

    def on_request_finished(self, info: RequestInfo) -> None:
        self.heard.append(f"finished {info.request_id}")

    def on_evict(self, block: BlockInfo) -> None:
        super().on_evict(block)
        self.heard.append(f"evict {block.depth}")


def test_the_policy_hears_of_everything_and_a_lookup_alone_is_nothing() -> None:
    policy = Recorder()
    cache = Cache(policy=policy)
    cache.run("a", range(6))
    cache.finish(RequestInfo("a", 6))
    assert policy.heard == ["miss a 0", "insert 0", "insert 1", "finished a"]
    policy.heard.clear()
    cache.lookup([*range(6), 7], RequestInfo("b", 7))
    assert policy.heard == []
    cache.run("b", [*range(5), 7, 8])
    assert policy.heard == ["miss b 5", "access 0", "access 1", "insert 1"]
    policy.heard.clear()
    cache.reset()
    assert policy.heard == ["evict 1", "evict 1", "evict 0"]


def test_attention_reaches_the_policy_even_before_the_block_is_cached() -> None:
    policy = H2OPolicy()
    cache = Cache(policy=policy)
    cache.start("a", range(6))
    first, second = cache.block_ids("a")
    cache.record_attention({first: 2.0, second: 0.5})
    cache.cache_blocks("a", range(6), with_tail=True)
    cache.record_attention({first: 1.0})
    assert sorted(policy._mass.values()) == [0.5, 3.0]


class Listener:
    def __init__(self) -> None:
        self.lookups: list[LookupStats] = []
        self.evictions: list[EvictionStats] = []
        self.errors: list[tuple[str, str]] = []

    def on_lookup(self, stats: LookupStats) -> None:
        self.lookups.append(stats)

    def on_eviction(self, stats: EvictionStats) -> None:
        self.evictions.append(stats)

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        self.errors.append((plugin, hook))


def test_each_eviction_is_reported_with_its_ages() -> None:
    listener, now = Listener(), [10.0]
    cache = KVCacheManager(
        num_blocks=1, block_size=4, policy=LRUPolicy(), num_hidden_slots=0, clock=lambda: now[0], observer=listener
    )
    for start, at in ((0, 10.0), (50, 13.0)):
        now[0] = at
        name = f"r{start}"
        info = RequestInfo(name, 3)
        assert cache.admit(info, cache.lookup(range(start, start + 3), info), 3) == ()
        cache.cache_blocks(name, range(start, start + 3), with_tail=True)
        now[0] = at + 1
        cache.free(name)
    (eviction,) = listener.evictions
    assert eviction == EvictionStats("lru", 0, 3, 0, lifetime_seconds=3.0, idle_seconds=2.0, seconds=eviction.seconds)
    assert eviction.seconds > 0
    assert listener.errors == []


def test_each_look_up_that_was_taken_is_reported_with_the_gaps_between_hits() -> None:
    listener, now = Listener(), [0.0]
    cache = KVCacheManager(
        num_blocks=8, block_size=4, policy=LRUPolicy(), num_hidden_slots=0, clock=lambda: now[0], observer=listener
    )
    tokens = range(9)
    for number, at in enumerate((1.0, 3.0, 8.0)):
        now[0] = at
        info = RequestInfo(f"r{number}", 9)
        cache.lookup(tokens, info)
        assert cache.admit(info, cache.lookup(tokens, info), 9, count=number < 2) is not None
        cache.cache_blocks(info.request_id, tokens, with_tail=False)
        now[0] = at + 1
        cache.free(info.request_id)
    kinds = [(stats.info.request_id, stats.hit_kind, stats.num_hit_tokens, stats.resumed) for stats in listener.lookups]
    assert kinds == [("r0", "miss", 0, False), ("r1", "radix", 8, False), ("r2", "radix", 8, True)]
    assert [stats.reuse_gap_seconds for stats in listener.lookups] == [(), (), (5.0, 5.0)]


def test_a_request_is_admitted_once() -> None:
    cache = Cache()
    cache.start("a", range(3))
    with pytest.raises(AssertionError, match="already"):
        cache.start("a", range(3))
    cache.free("a")
    cache.free("a")
    assert cache.stats().free == 64
