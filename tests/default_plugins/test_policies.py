from types import ModuleType

import pluggy
import pytest

from openai_kv import hookspecs
from openai_kv.cache.block import Block
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.default_plugins import h2o, lru, sink_lru
from openai_kv.request import RequestInfo


def cached(cache: KVCacheManager, name: str, first: int, length: int, mass: float = 0.0) -> None:
    """One request of `length` tokens from `first` on comes and goes; its blocks draw `mass` of attention each."""
    text = range(first, first + length)
    info = RequestInfo(name, length)
    assert cache.admit(info, cache.lookup(text, info), length) is not None
    cache.cache_blocks(name, text, with_tail=True)
    cache.record_attention(dict.fromkeys(cache.block_ids(name), mass))
    cache.free(name)
    cache.check_integrity()


def left(cache: KVCacheManager, first: int, length: int) -> int:
    """Tokens of that request that are still cached, but for its last."""
    return cache.lookup(range(first, first + length), RequestInfo("?", length)).num_tokens


def cache_of(policy: EvictionPolicy, num_blocks: int) -> KVCacheManager:
    return KVCacheManager(num_blocks=num_blocks, block_size=2, policy=policy, num_hidden_slots=0)


@pytest.mark.parametrize(
    ("module", "policy", "needs_attention"),
    [(lru, lru.LRUPolicy, False), (sink_lru, sink_lru.SinkLRUPolicy, False), (h2o, h2o.H2OPolicy, True)],
)
def test_each_registers_itself_through_the_hook(
    module: ModuleType, policy: type[EvictionPolicy], needs_attention: bool
) -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module)
    manager.check_pending()
    registered: list[type[EvictionPolicy]] = []
    manager.hook.register_eviction_policies(register=registered.append)
    assert registered == [policy]
    assert policy.name == module.__name__.rpartition(".")[2]
    assert policy.needs_attention is needs_attention


def test_lru_evicts_the_chain_not_used_for_longest_from_its_end() -> None:
    cache = cache_of(lru.LRUPolicy(), 4)
    cached(cache, "a", 0, 4)
    cached(cache, "b", 100, 4)
    cached(cache, "a again", 0, 4)
    cached(cache, "c", 200, 2)
    assert (left(cache, 0, 4), left(cache, 100, 4)) == (3, 2)
    cached(cache, "d", 300, 2)
    assert (left(cache, 0, 4), left(cache, 100, 4)) == (3, 0)


def test_lru_counts_a_copied_tail_as_used() -> None:
    cache = cache_of(lru.LRUPolicy(), 3)
    cached(cache, "a", 0, 2)
    cached(cache, "b", 100, 2)
    info = RequestInfo("c", 2)
    assert cache.admit(info, cache.lookup([0, 7], info), 2) is not None
    cache.free("c")
    cached(cache, "d", 200, 4)
    assert (left(cache, 0, 2), left(cache, 100, 2)) == (1, 0)


def test_sink_lru_keeps_first_blocks_while_there_is_another_candidate() -> None:
    cache = cache_of(sink_lru.SinkLRUPolicy(), 4)
    cached(cache, "sink", 0, 2)
    cached(cache, "chain", 100, 6)
    cached(cache, "c", 200, 4)
    assert (left(cache, 0, 2), left(cache, 100, 6)) == (1, 2)
    cached(cache, "d", 300, 2)
    assert (left(cache, 0, 2), left(cache, 200, 4)) == (1, 2), "the other non-first block went"
    cached(cache, "e", 400, 2)
    assert left(cache, 0, 2) == 0, "only first blocks were left: the least recently used"


def test_lru_would_have_evicted_that_sink() -> None:
    cache = cache_of(lru.LRUPolicy(), 4)
    cached(cache, "sink", 0, 2)
    cached(cache, "chain", 100, 6)
    cached(cache, "c", 200, 2)
    assert (left(cache, 0, 2), left(cache, 100, 6)) == (0, 5)


def test_h2o_evicts_what_drew_the_least_attention() -> None:
    cache = cache_of(h2o.H2OPolicy(), 6)
    cached(cache, "heavy", 0, 4, mass=3.0)
    cached(cache, "light", 100, 4, mass=1.0)
    cached(cache, "light again", 100, 4, mass=0.5)
    cached(cache, "middle", 200, 4, mass=2.0)
    cached(cache, "c", 300, 2)
    assert (left(cache, 0, 4), left(cache, 100, 4), left(cache, 200, 4)) == (3, 2, 3)
    cached(cache, "d", 400, 2)
    assert (left(cache, 0, 4), left(cache, 200, 4)) == (3, 2)


def test_h2o_protects_first_blocks_and_forgets_what_is_gone() -> None:
    policy = h2o.H2OPolicy()
    cache = cache_of(policy, 3)
    cached(cache, "sink", 0, 2, mass=0.1)
    cached(cache, "chain", 100, 4, mass=9.0)
    cached(cache, "c", 200, 2, mass=1.0)
    assert (left(cache, 0, 2), left(cache, 100, 4)) == (1, 2)
    cache.reset()
    assert policy._mass == {}


@pytest.mark.parametrize("policy", [sink_lru.SinkLRUPolicy(), h2o.H2OPolicy()])
def test_among_first_blocks_the_order_is_the_policys_own(policy: sink_lru.SinkLRUPolicy | h2o.H2OPolicy) -> None:
    blocks = [Block(block_id) for block_id in range(3)]
    for block, score in zip(blocks, (3.0, 1.0, 2.0), strict=True):
        block.last_accessed = int(score)
        policy.on_insert(block.info)
        policy.record_attention(block.info, score)
        policy.on_evictable(block.info)
    order = []
    for _ in blocks:
        victim = policy.select_victim(set())
        order.append(victim.block_id)
        policy.on_evict(victim)
    assert order == [1, 2, 0]
