"""What a policy may rely on, seen through a policy that takes notes."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from openai_kv.cache.block import chain_key, root_key
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import BlockInfo, CacheInfo
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.request import RequestInfo


class Notes(LRUPolicy):
    """Keeps (event, key) of each content, and the blocks accessed at last."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: list[CacheInfo] = []
        self.events: list[tuple[str, int]] = []
        self.accessed: list[BlockInfo] = []

    def start(self, cache: CacheInfo) -> None:
        assert not self.events
        self.caches.append(cache)

    def on_insert(self, block: BlockInfo) -> None:
        self.events.append(("insert", block.key))

    def on_access(self, block: BlockInfo) -> None:
        super().on_access(block)
        self.events.append(("access", block.key))
        self.accessed.append(block)

    def on_evict(self, block: BlockInfo) -> None:
        super().on_evict(block)
        self.events.append(("evict", block.key))

    def keys(self, event: str) -> list[int]:
        return [key for name, key in self.events if name == event]


class Cache:
    """One request after the other, at a time of our choosing."""

    def __init__(self, num_blocks: int = 8) -> None:
        self.now = 0.0
        self.notes = Notes()
        self.manager = KVCacheManager(
            num_blocks=num_blocks, block_size=2, policy=self.notes, num_hidden_slots=0, clock=lambda: self.now
        )
        self.number = 0

    def request(self, tokens: Sequence[int], held: float = 0.0, **hints: object) -> None:
        self.number += 1
        info = RequestInfo(f"r{self.number}", len(tokens), **hints)  # type: ignore[arg-type]
        assert self.manager.admit(info, self.manager.lookup(tokens, info), len(tokens)) is not None
        self.manager.cache_blocks(info.request_id, tokens, with_tail=True)
        self.now += held
        self.manager.free(info.request_id)
        self.manager.finish(info)


def test_the_policy_is_started_once_with_the_sizes_and_the_clock() -> None:
    cache = Cache(5)
    (info,) = cache.notes.caches
    cache.now = 7.0
    assert (info.num_blocks, info.block_size, info.clock()) == (5, 2, 7.0)


def test_content_that_comes_back_has_the_key_it_left_with() -> None:
    cache = Cache(2)
    cache.request([1, 2, 3, 4])
    cache.request([5, 6, 7, 8])
    cache.request([1, 2, 3, 4])
    inserted, evicted = cache.notes.keys("insert"), cache.notes.keys("evict")
    assert inserted[4:] == inserted[:2]
    assert set(evicted[:2]) == set(inserted[:2])
    assert len(set(inserted)) == 4


def test_a_key_stands_for_all_before_it_and_the_namespace() -> None:
    cache = Cache()
    cache.request([1, 2, 9, 9])
    cache.request([3, 4, 9, 9])
    cache.request([1, 2], namespace="salt")
    assert len(set(cache.notes.keys("insert"))) == 5


def test_the_key_of_a_partial_block_grows_with_it() -> None:
    cache = Cache()
    info = RequestInfo("r", 1)
    assert cache.manager.admit(info, cache.manager.lookup([1], info), 1) is not None
    cache.manager.cache_blocks("r", [1], with_tail=True)
    assert cache.manager.allocate_slots("r", 2)
    cache.manager.cache_blocks("r", [1, 2], with_tail=True)
    cache.manager.free("r")
    cache.manager.reset()
    assert cache.notes.events == [("insert", chain_key(0, (1,))), ("evict", chain_key(0, (1, 2)))]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_keys_are_the_same_in_every_process(seed: str) -> None:
    program = (
        "from openai_kv.cache.block import chain_key, root_key\n"
        "print(chain_key(chain_key(root_key('salt'), (1,)), (2,)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == chain_key(chain_key(root_key("salt"), (1,)), (2,))


def test_the_latest_request_describes_the_block_and_the_gap_is_how_long_it_was_idle() -> None:
    cache = Cache()
    cache.request([1, 2, 3], held=2.0, kind="chat", turn=1, session_id="a")
    cache.now = 10.0
    cache.request([1, 2, 4], kind="completion", turn=3)
    block = cache.notes.accessed[-1]
    assert (block.kind, block.turn, block.session_id, block.gap) == ("completion", 3, None, 8.0)


def test_a_chain_is_accessed_and_inserted_from_the_root() -> None:
    cache = Cache()
    cache.request([1, 2, 3, 4])
    cache.request([1, 2, 3, 4, 5])
    inserted = cache.notes.keys("insert")
    assert inserted[0] == chain_key(0, (1, 2))
    assert cache.notes.keys("access") == inserted[:2]
    assert [block.depth for block in cache.notes.accessed] == [0, 1]
