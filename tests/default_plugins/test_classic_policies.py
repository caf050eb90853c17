"""The classic policies: held to their papers in a flat cache, then to the rule that only leaves go."""

from collections.abc import Callable
from math import log2
from random import Random

import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import CacheInfo, EvictionPolicy
from openai_kv.default_plugins.arc import ARCPolicy
from openai_kv.default_plugins.fifo import FIFOPolicy
from openai_kv.default_plugins.gdsf import GDSFPolicy
from openai_kv.default_plugins.learned import LearnedPolicy
from openai_kv.default_plugins.lfu import LFUPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.default_plugins.s3_fifo import S3FIFOPolicy
from openai_kv.default_plugins.sieve import SievePolicy
from openai_kv.default_plugins.slru import SLRUPolicy
from openai_kv.default_plugins.ttl import TTLPolicy
from openai_kv.default_plugins.wa import WorkloadAwarePolicy
from openai_kv.request import RequestInfo
from tests.counted import count_comparisons
from tests.default_plugins import references
from tests.default_plugins.flat import FlatCache

CAPACITY = 20
CLASSIC = [FIFOPolicy, LFUPolicy, GDSFPolicy, SLRUPolicy, S3FIFOPolicy, SievePolicy, ARCPolicy, TTLPolicy]


def stream(seed: int, length: int = 4000) -> list[int]:
    """Some contents are wanted often, most seldom; what is wanted drifts, and there are scans."""
    random = Random(seed)
    contents = [int(random.paretovariate(0.6)) + 3 * (at // 400) for at in range(length)]
    scan = iter(range(10**9, 2 * 10**9))
    return [next(scan) if at % 500 < 60 else content % 10**6 for at, content in enumerate(contents)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("policy", "reference"),
    [
        (FIFOPolicy, references.Fifo),
        (LFUPolicy, references.lfu),
        (GDSFPolicy, references.lfu_da),
        (SLRUPolicy, references.Slru),
        (SievePolicy, references.Sieve),
        (S3FIFOPolicy, references.S3Fifo),
    ],
)
def test_a_flat_cache_evicts_as_the_paper_does(
    policy: type[EvictionPolicy], reference: Callable[[int], references.Reference], seed: int
) -> None:
    expected = reference(CAPACITY)
    for content in stream(seed):
        expected.request(content)
    evicted = FlatCache(policy(), CAPACITY).run(stream(seed))
    assert evicted == expected.evicted
    assert len(evicted) > 1000


@pytest.mark.parametrize("seed", range(3))
def test_arc_is_one_step_late_and_no_worse(seed: int) -> None:
    expected, policy = references.Arc(CAPACITY), ARCPolicy()
    cache = FlatCache(policy, CAPACITY)
    for content in stream(seed):
        expected.request(content)
        cache.request(content)
        assert len(policy._t1) + len(policy._b1) <= CAPACITY
        assert policy._total() <= 2 * CAPACITY
    hits = len(stream(seed)) - len(expected.evicted) - CAPACITY
    assert cache.hits == pytest.approx(hits, rel=0.02)
    assert hits > 500


def test_arc_grows_the_recent_list_when_its_ghosts_return_and_shrinks_it_for_the_others() -> None:
    policy = ARCPolicy()
    cache = FlatCache(policy, 4)
    cache.run([1, 2, 1, 2, 3, 4, 5])
    assert (len(policy._t1), len(policy._t2), policy._p) == (2, 2, 0)
    cache.run([3])
    assert (policy._p, len(policy._b1)) == (1, 1)
    cache.run([6, 7, 1])
    assert policy._p == 0


def test_s3_fifo_lets_what_returns_in_time_into_the_main_queue() -> None:
    policy = S3FIFOPolicy(small_share=0.25)
    cache = FlatCache(policy, 4)
    cache.run([1, 2, 3, 4, 5])
    assert len(policy._main) == 0
    cache.run([1])
    assert (len(policy._main), len(policy._ghost)) == (1, 1)
    cache.run(range(10, 30))
    assert (len(policy._main), len(policy._ghost)) == (1, 3)


def test_slru_protects_at_most_its_share() -> None:
    policy = SLRUPolicy(protected_share=0.25)
    cache = FlatCache(policy, 8)
    cache.run([1, 2, 3, 1, 2, 3])
    assert (len(policy._protected), len(policy._probation)) == (2, 1)
    assert cache.run(range(10, 17)) == [1, 10]


def test_sieve_spares_what_was_hit_once_and_takes_it_the_next_time() -> None:
    cache = FlatCache(SievePolicy(), 3)
    assert cache.run([1, 2, 3, 1, 4, 5, 6]) == [2, 3, 4]
    assert cache.run([7, 8]) == [5, 6]
    assert cache.run([7, 8, 9]) == [1], "the hand went round"


def test_gdsf_ages_where_lfu_never_forgets() -> None:
    contents = [1] * 9 + [value for start in range(2, 60, 2) for value in (start, start + 1) * 2]
    assert 1 not in FlatCache(LFUPolicy(), 3).run(contents)
    assert 1 in FlatCache(GDSFPolicy(), 3).run(contents)


def test_gdsf_weighs_a_block_by_depth_and_by_how_full_it_is() -> None:
    policy = GDSFPolicy(doubling_depth=4)
    policy.start(CacheInfo(8, 2, float))
    deep, short = Block(0), Block(1)
    deep.depth, deep.token_ids = 4, (1, 2)
    short.token_ids = (1,)
    assert (policy.cost(deep.info), policy.cost(short.info)) == (2.0, 0.5)


def test_ttl_goes_by_who_uses_a_block_and_keeps_the_longest() -> None:
    policy = TTLPolicy(conversation=100, chat=20, completion=5, generate=1)
    cache = FlatCache(policy, 4)
    cache.request(1, kind="generate", turn=2)
    cache.request(2, kind="chat")
    cache.request(3, kind="chat", session_id="s")
    cache.request(3, kind="generate")
    cache.request(4, kind="unheard of")
    evicted = cache.run([20, 21, 22])
    assert evicted == [4, 20, 21], "a completion lives five seconds, and each request takes one"
    cache.now += 50
    assert cache.run([23, 24]) == [22, 2]


def test_ttl_of_zero_keeps_nothing() -> None:
    cache = FlatCache(TTLPolicy(generate=0), 4)
    cache.request(1, kind="generate")
    cache.request(2, kind="completion")
    cache.request(2, kind="generate")
    assert (cache.store.pool.num_cached, cache.hits) == (1, 1)


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [(SLRUPolicy, {"protected_share": 2}), (S3FIFOPolicy, {"small_share": -1}), (GDSFPolicy, {"doubling_depth": -1})],
)
def test_options_out_of_range_are_refused(policy: Callable[..., EvictionPolicy], wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        policy(**wrong)


def chain(cache: KVCacheManager, name: str, first: int, length: int) -> None:
    tokens, info = range(first, first + length), RequestInfo(name, length)
    assert cache.admit(info, cache.lookup(tokens, info), length) is not None
    cache.cache_blocks(name, tokens, with_tail=True)
    cache.free(name)
    cache.finish(info)
    cache.check_integrity()


def left(cache: KVCacheManager, first: int, length: int) -> int:
    return cache.lookup(range(first, first + length), RequestInfo("?", length)).num_tokens


@pytest.mark.parametrize("policy", CLASSIC)
def test_a_chain_goes_from_its_end(policy: type[EvictionPolicy]) -> None:
    cache = KVCacheManager(num_blocks=4, block_size=2, policy=policy(), num_hidden_slots=0)
    chain(cache, "a", 0, 6)
    chain(cache, "b", 100, 2)
    chain(cache, "c", 200, 4)
    assert left(cache, 0, 6) == 2


def test_fifo_takes_the_chain_that_came_first_whatever_is_hit() -> None:
    cache = KVCacheManager(num_blocks=5, block_size=2, policy=FIFOPolicy(), num_hidden_slots=0)
    chain(cache, "a", 0, 4)
    chain(cache, "b", 100, 4)
    chain(cache, "a again", 0, 4)
    chain(cache, "c", 200, 4)
    assert (left(cache, 0, 4), left(cache, 100, 4)) == (2, 3)


def test_the_hand_of_sieve_comes_at_once_to_what_it_could_not_look_at() -> None:
    cache = KVCacheManager(num_blocks=6, block_size=2, policy=SievePolicy(), num_hidden_slots=0)
    for name, first in (("a", 0), ("b", 100)):
        chain(cache, name, first, 6)
    for name, first in (("c", 200), ("d", 300), ("e", 400)):
        chain(cache, name, first, 2)
    assert (left(cache, 0, 6), left(cache, 100, 6)) == (0, 5)


@pytest.mark.parametrize("size", [10**3, 10**4, 10**5])
@pytest.mark.parametrize("policy", [LRUPolicy, *CLASSIC, WorkloadAwarePolicy, LearnedPolicy])
def test_a_decision_takes_a_logarithm_of_comparisons(
    policy: type[EvictionPolicy], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All events together: half of the blocks are hit, then a quarter of the pool is replaced."""
    counted, random, governs = count_comparisons(monkeypatch), Random(0), policy()
    governs.start(CacheInfo(size, 1, float))
    blocks = [Block(number) for number in range(size)]
    for number, block in enumerate(blocks):
        block.token_ids, block.key = (number,), number
        governs.on_insert(block.info)
        governs.on_evictable(block.info)
    for tick, block in enumerate(random.choices(blocks, k=size // 2)):
        block.hit_count, block.last_accessed, block.last_accessed_time = block.hit_count + 1, tick, float(tick)
        governs.on_unevictable(block.info)
        governs.on_access(block.info)
        governs.on_evictable(block.info)
    for number in range(size // 4):
        governs.on_evict(governs.select_victim(frozenset()))
        fresh = Block(size + number)
        fresh.token_ids, fresh.key = (size + number,), size + number
        governs.on_insert(fresh.info)
        governs.on_evictable(fresh.info)
    assert 0 < counted.number < (size + size // 2 + size // 4) * 3 * log2(size)
