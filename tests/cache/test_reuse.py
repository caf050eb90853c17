"""The parts that `wa` and `learned` are made of."""

from collections import Counter
from random import Random

import pytest

from openai_kv.cache.block import Block
from openai_kv.cache.request_use import RequestUse, UseTracker
from openai_kv.cache.reuse import EDGES, NUM_BINS, WIDTHS, Traits, bin_of, hit_density
from openai_kv.cache.reuse_watch import ReuseWatch

TRAITS = Traits("chat", 0, False, 1, 1, 1)


def best_stop(hazards: list[float], start: int) -> float:
    """Hits a second for the best bin to stop behind, by trying each."""
    hits = seconds = best = 0.0
    left = 1.0
    for hazard, width in list(zip(hazards, WIDTHS, strict=True))[start:]:
        hits += left * hazard
        seconds += left * width * (1 - hazard / 2)
        left *= 1 - hazard
        best = max(best, hits / seconds)
    return best


@pytest.mark.parametrize("seed", range(20))
def test_hit_density_stops_at_the_best_time(seed: int) -> None:
    random = Random(seed)
    hazards = [random.random() ** 3 * 0.95 for _ in range(NUM_BINS)]
    assert hit_density(hazards) == pytest.approx([best_stop(hazards, at) for at in range(NUM_BINS)])


def test_equal_hazards_a_bin_make_the_older_worth_less() -> None:
    densities = hit_density([0.1] * NUM_BINS)[1:]
    assert densities == sorted(densities, reverse=True)


class CountingModel:
    def __init__(self) -> None:
        self.entered: Counter[int] = Counter()
        self.hits: Counter[int] = Counter()

    def came(self, traits: Traits, age_bin: int) -> None:
        self.entered[age_bin] += 1

    def used(self, traits: Traits, age_bin: int) -> None:
        self.hits[age_bin] += 1

    def hazards(self, traits: Traits) -> list[float]:
        return []


def test_a_watched_block_is_followed_until_it_is_used() -> None:
    model = CountingModel()
    watch, use = ReuseWatch(model, 10), RequestUse("chat", 1, 0)
    watch.add(1, TRAITS, use, 0.0)
    watch.add(2, TRAITS, use, 0.0)
    watch.advance(EDGES[2])
    assert model.entered == {0: 2, 1: 2, 2: 2, 3: 2}
    assert watch.used(1, EDGES[4]) is use
    assert watch.used(1, EDGES[4]) is None
    assert model.entered == {0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1}
    watch.advance(10 * EDGES[-1])
    assert (model.entered[NUM_BINS - 1], model.hits) == (1, {5: 1})
    assert watch.used(2, 11 * EDGES[-1]) is use
    assert model.hits[NUM_BINS - 1] == 1


def test_the_oldest_watched_block_is_forgotten() -> None:
    watch, use = ReuseWatch(CountingModel(), 2), RequestUse("chat", 1, 0)
    for key in (1, 2, 1, 3):
        watch.add(key, TRAITS, use, 0.0)
    assert [key for key in (1, 2, 3) if watch.used(key, 1.0)] == [1, 3]


def block(depth: int, hits: int = 0) -> Block:
    made = Block(depth)
    made.depth, made.hit_count = depth, hits
    return made


def test_requests_side_by_side_get_their_own_blocks() -> None:
    tracker = UseTracker()
    long, short = [block(depth) for depth in range(4)], [block(0)]
    for each in (*long[:3], *short, long[3]):
        tracker.inserted(each.info, None)
    assert tracker[long[0].info] is tracker[long[3].info] is not tracker[short[0].info]
    assert (tracker[long[0].info].length, tracker[short[0].info].length) == (4, 1)


def test_turns_are_counted_where_a_request_goes_on_from_the_end_of_another() -> None:
    tracker = UseTracker()
    chain = [block(depth) for depth in range(4)]
    for each in chain:
        tracker.inserted(each.info, None)
    tracker[chain[0].info].close()
    for each in chain[:3]:
        tracker.matched(each.info, None)
    more = [block(depth) for depth in range(3, 8)]
    for each in more:
        tracker.inserted(each.info, None)
    second = tracker[more[-1].info]
    second.close()
    assert (second.turn, second.known, second.length) == (2, 3, 8)
    tracker.matched(chain[0].info, None)
    other = block(1)
    tracker.inserted(other.info, None)
    tracker[other.info].close()
    assert tracker[other.info].turn == 1, "only the beginning is the same"


def test_a_block_that_was_only_copied_from_is_not_known() -> None:
    tracker = UseTracker()
    first = [block(0), block(1)]
    for each in first:
        tracker.inserted(each.info, None)
    tracker[first[0].info].close()
    for each in first:
        tracker.matched(each.info, None)
    own = block(1)
    tracker.inserted(own.info, None)
    use = tracker[own.info]
    assert tracker[first[0].info] is use
    assert (use.known, use.length, len(use.close())) == (1, 2, 2)


def test_bins_meet_at_their_edges() -> None:
    assert [bin_of(idle) for idle in (0, 0.99, 1, EDGES[-1], 10**9)] == [0, 0, 1, NUM_BINS - 1, NUM_BINS - 1]
