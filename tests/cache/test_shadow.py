from random import Random

import pytest

from openai_kv.cache.block import Block, chain_key
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import BlockInfo, CacheInfo, EvictionPolicy
from openai_kv.cache.shadow import Shadow
from openai_kv.default_plugins.arc import ARCPolicy
from openai_kv.default_plugins.gdsf import GDSFPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.default_plugins.s3_fifo import S3FIFOPolicy
from openai_kv.request import RequestInfo

CAPACITY = 24
Chain = tuple[int, ...]


def chains(seed: int, count: int = 600) -> list[Chain]:
    """Prefixes with popular branches; no request is longer than the cache."""
    random, number = Random(seed), 1
    made: list[Chain] = [(0,)]
    for _ in range(count):
        start = random.choice(made[-30:])
        kept = start[: random.randrange(min(len(start), 12) + 1)]
        new = tuple(range(number, number + random.randrange(4)))
        number += len(new)
        made.append((*kept, *new) or (0,))
    return made


class Caches:
    """A cache and its shadow that see the same requests, one after the other."""

    def __init__(self, make: type[EvictionPolicy], capacity: int = CAPACITY) -> None:
        self.now = 0.0
        self.manager = KVCacheManager(
            num_blocks=CAPACITY, block_size=1, policy=make(), num_hidden_slots=0, clock=lambda: self.now
        )
        self.shadow = Shadow(make(), CacheInfo(capacity, 1, lambda: self.now))

    def request(self, chain: Chain) -> tuple[int, int]:
        """Hits in both."""
        self.now += 1
        info = RequestInfo(str(self.now), len(chain))
        hit = self.manager.lookup((*chain, -1), info)
        self.manager.admit(info, hit, len(chain))
        self.manager.cache_blocks(info.request_id, chain, with_tail=False)
        self.manager.free(info.request_id)
        return hit.num_tokens, sum(self.use(chain))

    def use(self, chain: Chain) -> list[bool]:
        return [
            self.shadow.use(real(chain[: end + 1], self.now), key(chain[:end]) if end else None)
            for end in range(len(chain))
        ]


def key(chain: Chain) -> int:
    return chain_key(key(chain[:-1]), chain[-1:]) if chain else 0


def real(chain: Chain, now: float) -> BlockInfo:
    block = Block(0)
    block.key, block.depth, block.token_ids = key(chain), len(chain) - 1, chain[-1:]
    block.last_accessed, block.last_accessed_time = int(now), now
    return block.info


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", [LRUPolicy, GDSFPolicy, S3FIFOPolicy])
def test_a_shadow_of_the_same_size_hits_what_the_cache_hits(policy: type[EvictionPolicy], seed: int) -> None:
    caches = Caches(policy)
    hits = [caches.request(chain) for chain in chains(seed)]
    inside, shadowed = sum(cached for cached, _ in hits), sum(shadow for _, shadow in hits)
    assert inside > 300
    assert shadowed == pytest.approx(inside, rel=0.02), "room is made block by block here, for a whole request there"
    if policy is LRUPolicy:
        assert all(cached == shadow for cached, shadow in hits)


def test_no_block_outlives_what_it_continues() -> None:
    caches = Caches(ARCPolicy, capacity=6)
    for chain in chains(0):
        caches.use(chain)
        blocks = caches.shadow.blocks
        assert len(blocks) <= 6
        parents = [block.parent for block in blocks.values() if block.parent is not None]
        assert all(blocks.get(parent.key) is parent for parent in parents)
        assert sum(block.children for block in blocks.values()) == len(parents)


def test_of_a_request_longer_than_the_shadow_the_head_stays() -> None:
    caches = Caches(LRUPolicy, capacity=3)
    caches.use((9, 8))
    caches.use((1, 2, 3, 4, 5))
    assert caches.use((1, 2, 3, 4, 5)) == [True, True, True, False, False]
    assert len(caches.shadow.blocks) == 3


def test_what_is_not_admitted_goes_with_all_before_it() -> None:
    class Refuses(LRUPolicy):
        def admit(self, block: BlockInfo) -> bool:
            return block.key == key((7,))

    caches = Caches(Refuses)
    caches.use((1, 2, 3))
    caches.use((7, 8))
    caches.use((5,))
    assert set(caches.shadow.blocks) == {key((7,)), key((5,))}, "7 and what is in hand"


def test_a_policy_is_told_of_hits_and_gaps_as_in_the_cache() -> None:
    caches = Caches(LRUPolicy)
    for now in (1.0, 5.0, 7.0):
        caches.now = now
        caches.use((1,))
    (block,) = caches.shadow.blocks.values()
    assert (block.hit_count, block.gap, block.created_time, block.last_accessed_time) == (2, 2.0, 1.0, 7.0)
    assert (block.is_first_block, block.ref_count, block.num_tokens) == (True, 0, 1)
