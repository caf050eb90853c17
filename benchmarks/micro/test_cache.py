"""The cache without a model: finding a prefix of 8k tokens in 100,000 blocks, and making room in a full pool."""

from collections.abc import Sequence
from itertools import count
from random import Random

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.plugins import load_plugins
from openai_kv.request import RequestInfo

BLOCK_SIZE = 16
PROMPT = 8192
SHARED = 1024  # the system prompt that all have in common
VOCABULARY = 49_152


class Cache:
    """A KVCacheManager, and requests that compute a prompt and leave it there."""

    def __init__(self, num_blocks: int, policy: EvictionPolicy) -> None:
        self.manager = KVCacheManager(num_blocks=num_blocks, block_size=BLOCK_SIZE, policy=policy, num_hidden_slots=0)
        self._random = Random(0)
        self._numbers = count()

    def tokens(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.choices(range(VOCABULARY), k=length))

    def info(self, prompt: Sequence[int]) -> RequestInfo:
        return RequestInfo(str(next(self._numbers)), len(prompt))

    def store(self, prompt: Sequence[int]) -> None:
        info = self.info(prompt)
        admitted = self.manager.admit(info, self.manager.lookup(prompt, info), len(prompt))
        assert admitted is not None, "the pool is too small for the prompt"
        self.manager.cache_blocks(info.request_id, prompt, with_tail=True)
        self.manager.free(info.request_id)
        self.manager.finish(info)


def policy(name: str) -> EvictionPolicy:
    return load_plugins().create_policy(name, {})


@pytest.fixture(scope="module")
def conversations(tiny: bool) -> tuple[Cache, tuple[int, ...]]:
    """A tree of conversations that part after the system prompt, and the newest of them."""
    num_blocks = 2_000 if tiny else 100_000
    cache = Cache(num_blocks, policy("lru"))
    shared = cache.tokens(SHARED)
    while cache.manager.stats().free >= PROMPT // BLOCK_SIZE:
        prompt = shared + cache.tokens(PROMPT - SHARED)
        cache.store(prompt)
    return cache, prompt


@pytest.mark.parametrize("cached", [PROMPT, SHARED, 0])
def test_look_up(benchmark: BenchmarkFixture, conversations: tuple[Cache, tuple[int, ...]], cached: int) -> None:
    cache, prompt = conversations
    wanted = prompt[:cached] + cache.tokens(PROMPT + 1 - cached)
    hit = benchmark(cache.manager.lookup, wanted, cache.info(wanted))
    benchmark.extra_info["cached_blocks"] = cache.manager.stats().cached
    assert hit.num_tokens // BLOCK_SIZE == cached // BLOCK_SIZE


@pytest.mark.parametrize("name", ["lru", "arc", "learned"])
def test_eviction(benchmark: BenchmarkFixture, name: str, tiny: bool) -> None:
    """A prompt of 64 blocks that nobody had comes and 64 blocks go, one decision each."""
    cache = Cache(640 if tiny else 10_000, policy(name))
    length = 64 * BLOCK_SIZE
    while cache.manager.stats().free:
        cache.store(cache.tokens(min(length, cache.manager.stats().free * BLOCK_SIZE)))
    benchmark.pedantic(cache.store, setup=lambda: ((cache.tokens(length),), {}), rounds=200)
    evicted = cache.manager.stats().eviction_count
    benchmark.extra_info["evicted_blocks"] = evicted
    assert evicted and evicted % 64 == 0
