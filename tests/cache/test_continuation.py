"""What the cache knows of how a running request goes on."""

from collections.abc import Sequence
from dataclasses import replace

from openai_kv.request import Breakpoint, RequestInfo, Retention
from tests.cache.test_manager import Cache

TEXT = list(range(30))


def running(cache: Cache, text: Sequence[int], info: RequestInfo | None = None) -> str:
    """A request that has computed all of `text` but the last token."""
    info = info or RequestInfo("now", len(text))
    assert cache.admit(info, cache.lookup(text, info), len(text)) is not None
    cache.cache_blocks(info.request_id, text[:-1], with_tail=False)
    return info.request_id


def test_it_goes_on_as_before_up_to_the_end_that_is_known() -> None:
    for length in range(1, 30):
        cache = Cache()
        cache.run("before", TEXT)
        name = running(cache, TEXT[:length])
        assert cache.continuation(name, TEXT[:length], 6) == TEXT[length : length + 6]
        assert cache.continuation(name, TEXT[:length], 100) == TEXT[length:]
        cache.free(name)
        cache.check_integrity()


def test_another_text_is_not_followed() -> None:
    cache = Cache()
    cache.run("before", TEXT)
    for text in ([*TEXT[:9], 99], [99, *TEXT[1:9]], [*TEXT, 99]):
        name = running(cache, text)
        assert cache.continuation(name, text, 4) == []
        cache.free(name)


def test_where_texts_part_the_one_used_last_is_followed() -> None:
    cache = Cache()
    for name, token in (("a", 60), ("b", 50), ("c", 70)):
        cache.run(name, [*TEXT[:6], token, token + 1])
    cache.run("b again", [*TEXT[:6], 50, 51, 52])
    assert cache.continuation(running(cache, TEXT[:6]), TEXT[:6], 9) == [50, 51, 52]


def test_within_a_namespace_only() -> None:
    cache = Cache()
    cache.run("before", TEXT, "theirs")
    assert cache.continuation(running(cache, TEXT[:9]), TEXT[:9], 4) == []
    ours = running(cache, TEXT[:9], RequestInfo("other", 9, "ours"))
    assert cache.continuation(ours, TEXT[:9], 4) == []
    theirs = running(cache, TEXT[:9], RequestInfo("same", 9, "theirs"))
    assert cache.continuation(theirs, TEXT[:9], 4) == TEXT[9:13]


def test_who_reads_nothing_is_told_nothing() -> None:
    cache = Cache()
    cache.run("before", TEXT)
    info = RequestInfo("now", 9, retention=Retention(explicit=True))
    assert cache.continuation(running(cache, TEXT[:9], info), TEXT[:9], 4) == []
    stored = replace(info, request_id="stored", retention=Retention(True, (Breakpoint(4, 60.0),)))
    assert cache.continuation(running(cache, TEXT[:9], stored), TEXT[:9], 4) == TEXT[9:13]


def test_after_a_reset_nothing_is_known() -> None:
    cache = Cache()
    cache.run("before", TEXT)
    name = running(cache, TEXT[:9])
    cache.reset()
    cache.run("after", TEXT)
    assert cache.continuation(name, TEXT[:9], 4) == []


def test_asking_is_no_use() -> None:
    cache = Cache()
    cache.run("before", TEXT)
    name = running(cache, TEXT[:5])
    blocks = [block for block in cache.store.pool.blocks if block.node is not None]
    before = [(block.last_accessed, block.hit_count, block.ref_count) for block in blocks]
    cache.continuation(name, TEXT[:5], 20)
    assert [(block.last_accessed, block.hit_count, block.ref_count) for block in blocks] == before


def test_slots_for_drafts_leave_blocks_to_others_and_come_back() -> None:
    cache = Cache(num_blocks=6)
    name = running(cache, TEXT[:7])
    assert cache.allocate_slots(name, 8, spare=100), "the last block has a slot left"
    assert not cache.allocate_slots(name, 9, spare=4)
    assert cache.allocate_slots(name, 9, spare=3)
    assert cache.allocate_slots(name, 17, spare=1)
    cache.trim_slots(name, 8)
    cache.check_integrity()
    stats = cache.stats()
    assert (stats.free, stats.referenced, stats.referenced_slots_used) == (4, 2, 8)
