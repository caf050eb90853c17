"""`wa` and `learned` against LRU, in hits: where there is something to learn, and where there is not."""

import heapq
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest

from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.default_plugins.learned import LearnedPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.default_plugins.wa import WorkloadAwarePolicy
from openai_kv.request import RequestInfo
from openai_kv.simulate.replay import Clock

OURS = [WorkloadAwarePolicy, LearnedPolicy]
Timed = tuple[float, tuple[int, ...]]


def replay(policy: EvictionPolicy, requests: Iterator[Timed], num_blocks: int) -> int:
    """Blocks hit in the later two thirds; chains of one-token blocks."""
    clock, hits, chains = Clock(), 0, list(requests)
    cache = KVCacheManager(num_blocks=num_blocks, block_size=1, policy=policy, num_hidden_slots=0, clock=clock)
    for number, (time, chain) in enumerate(chains):
        clock.now = time
        info = RequestInfo(str(number), len(chain) + 1)
        hit = cache.lookup((*chain, -1), info)
        hits += hit.num_tokens * (number > len(chains) / 3)
        assert cache.admit(info, hit, len(chain)) is not None
        cache.cache_blocks(info.request_id, chain, with_tail=False)
        cache.free(info.request_id)
        cache.finish(info)
    cache.check_integrity()
    return hits


def chats_and_scans(seed: int, num_requests: int = 1500) -> Iterator[Timed]:
    """Short chats go on after half a minute, mostly; every second request is long and never comes back."""
    random, fresh = Random(seed), count()
    waiting: list[Timed] = []
    for number in range(num_requests):
        now = number * 1.0
        if number % 2:
            yield now, tuple(next(fresh) for _ in range(20))
            continue
        chain: tuple[int, ...] = ()
        if waiting and waiting[0][0] <= now:
            chain = heapq.heappop(waiting)[1]
        chain += tuple(next(fresh) for _ in range(2))
        yield now, chain
        if random.random() < 0.7 and len(chain) < 12:
            heapq.heappush(waiting, (now + random.uniform(20, 40), chain))


def recent_things(seed: int, num_requests: int = 1500) -> Iterator[Timed]:
    """What was used lately comes back, whatever it is: there is nothing else to know."""
    random, fresh = Random(seed), count()
    recent: list[tuple[int, ...]] = []
    for number in range(num_requests):
        at = int(random.expovariate(1 / 30))
        chain = recent.pop(-1 - at) if at < len(recent) else tuple(next(fresh) for _ in range(4))
        recent.append(chain)
        yield number * 1.0, chain


@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("seed", range(2))
def test_long_one_shots_do_not_drive_out_chats_that_go_on(policy: type[EvictionPolicy], seed: int) -> None:
    lru = replay(LRUPolicy(), chats_and_scans(seed), 150)
    ours = replay(policy(), chats_and_scans(seed), 150)
    assert ours > 1.5 * lru + 200


@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("num_blocks", [40, 160])
def test_where_lru_is_best_little_is_lost(policy: type[EvictionPolicy], seed: int, num_blocks: int) -> None:
    lru = replay(LRUPolicy(), recent_things(seed), num_blocks)
    ours = replay(policy(), recent_things(seed), num_blocks)
    assert lru > 500
    assert ours > 0.95 * lru


@pytest.mark.parametrize("policy", OURS)
def test_a_weight_that_believes_anything_at_once_is_refused(policy: type[WorkloadAwarePolicy | LearnedPolicy]) -> None:
    with pytest.raises(ValueError, match="weight"):
        policy(weight=0)
