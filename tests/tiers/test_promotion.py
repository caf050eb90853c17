"""Blocks that went to a tier come back instead of being computed, and nothing a tier does changes an answer."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from openai_kv.cache.demotion import DemotionRule
from openai_kv.request import Breakpoint, Request, RequestStatus, Retention
from openai_kv.tiers.codec import encode
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.tier_thread import TierThread
from tests.fakes import expected_output
from tests.harness import Shape, make_request
from tests.tiers.inline import SHAPE, InlineThread, Machine, disk

PROMPT = list(range(1, 43))  # ten blocks and two tokens
OTHERS = [[100 + number] * 60 for number in range(4)]
SMALL = Shape(num_blocks=20)


def request(prompt: Sequence[int] = PROMPT, max_tokens: int = 3, **options: object) -> Request:
    return make_request(prompt, max_tokens, **options)  # type: ignore[arg-type]


def answer(machine: Machine, asked: Request) -> int:
    """How many rows an answer took; it is the right one."""
    before = machine.runner.num_rows
    (tokens,) = machine.run.generate(asked)
    assert tokens == expected_output(asked.prompt_token_ids, asked.params.max_tokens, 256)
    return machine.runner.num_rows - before


def test_after_a_restart_only_the_tail_is_computed(tmp_path: Path) -> None:
    first = Machine([disk(tmp_path)])
    assert answer(first, request()) == 44
    again = Machine([disk(tmp_path)])
    asked = request()
    assert answer(again, asked) == 4
    last = again.run.last(asked)
    assert (last.cached_tokens, last.hit_kind, last.promoted_tokens) == (40, "radix", {"disk": 40})
    stats = again.engine.stats().cache
    assert (stats.hits["radix"], stats.hit_tokens["radix"], stats.miss_count) == (1, 40, 0)
    assert (stats.prompt_tokens, stats.promoted_tokens) == (42, {"disk": 40})
    (tier,) = stats.tiers
    assert (tier.name, tier.plugin, tier.promoted_blocks, tier.demoted_blocks) == ("disk", "disk", 10, 1), "the output"
    assert answer(again, request()) == 2, "an exact hit of what was loaded"


def test_a_longer_prompt_takes_what_there_is(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request(PROMPT[:20], 1))
    again = Machine([disk(tmp_path)])
    asked = request()
    assert answer(again, asked) == 42 - 20 + 2
    assert again.run.last(asked).cached_tokens == 20


def test_the_cache_goes_first_and_the_tier_goes_on_from_there(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request())
    again = Machine([disk(tmp_path)])
    assert answer(again, request(PROMPT[:14], 1)) == 2
    asked = request()
    assert answer(again, asked) == 4
    assert again.run.last(asked).promoted_tokens == {"disk": 40 - 14}, "the fourth block came whole"


def test_what_was_evicted_comes_back_from_memory() -> None:
    machine = Machine([HostTier(2**20)], [DemotionRule("write-back")], SMALL)
    answer(machine, request())
    assert machine.engine.stats().cache.tiers[0].demoted_blocks == 0, "nothing was evicted"
    for other in OTHERS:
        answer(machine, request(other))
    asked = request()
    assert answer(machine, asked) == 4
    assert machine.run.last(asked).promoted_tokens == {"host": 40}


def test_after_hits() -> None:
    machine = Machine([HostTier(2**20)], [DemotionRule("after-hits", 2)])
    answer(machine, request(max_tokens=1))
    answer(machine, request([*PROMPT[:20], 99], max_tokens=1))
    assert machine.engine.stats().cache.tiers[0].blocks in (0, None)
    answer(machine, request([*PROMPT[:20], 98], max_tokens=1))
    assert machine.engine.stats().cache.tiers[0].blocks == 5


def test_two_tiers_complete_each_other(tmp_path: Path) -> None:
    host, other = HostTier(2**20), disk(tmp_path)
    answer(Machine([host]), request(PROMPT[:20], 1))
    answer(Machine([other]), request())
    other.remove([*host._records])
    both = Machine([host, other], [DemotionRule("write-back"), DemotionRule("write-through")])
    asked = request(PROMPT, 1)
    assert answer(both, asked) == 2
    assert both.run.last(asked).promoted_tokens == {"host": 20, "disk": 20}


def test_namespaces_isolate(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request(namespace="a"))
    again = Machine([disk(tmp_path)])
    assert answer(again, request(namespace="b")) == 44
    assert answer(again, request()) == 44
    assert answer(again, request(namespace="a")) == 4


def with_retention(asked: Request, retention: Retention) -> Request:
    asked.info = replace(asked.info, retention=retention)
    return asked


@pytest.mark.parametrize(
    ("retention", "left"),
    [
        (Retention(in_memory=True), 44),
        (Retention(explicit=True), 44),
        (Retention(explicit=True, breakpoints=(Breakpoint(21, 60.0),)), 44 - 20),
    ],
)
def test_what_may_not_be_stored_is_not(tmp_path: Path, retention: Retention, left: int) -> None:
    answer(Machine([disk(tmp_path)]), with_retention(request(), retention))
    assert answer(Machine([disk(tmp_path)]), request()) == left


def test_who_bypasses_the_cache_reads_no_tier(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request())
    assert answer(Machine([disk(tmp_path)]), with_retention(request(), Retention(explicit=True))) == 44
    assert answer(Machine([disk(tmp_path)]), with_retention(request(), Retention(in_memory=True))) == 4


def test_a_reset_forgets_the_tiers_too(tmp_path: Path) -> None:
    machine = Machine([disk(tmp_path)])
    answer(machine, request())
    machine.engine.reset_cache(tiers=("device",))
    assert answer(machine, request()) == 4
    machine.engine.reset_cache()
    assert answer(machine, request()) == 44
    machine.engine.reset_cache(tiers=("disk",))
    assert machine.engine.stats().cache.cached > 0
    machine.engine.reset_cache(tiers=("device",))
    assert answer(machine, request()) == 44


def test_a_reset_forgets_what_is_still_to_be_written_or_loaded(tmp_path: Path) -> None:
    machine = Machine([disk(tmp_path)], seconds_a_token=1e-6)
    machine.thread.held = True
    answer(machine, request())
    machine.engine.reset_cache()
    machine.thread.release()
    assert answer(machine, request()) == 44


@pytest.mark.parametrize("calls", range(5))
def test_what_was_being_loaded_when_its_tier_was_reset_goes_there_again(tmp_path: Path, calls: int) -> None:
    """After none of the calls for blocks, or some, or all."""
    answer(Machine([disk(tmp_path)]), request())
    machine, asked = Machine([disk(tmp_path)]), request()
    machine.thread.held, machine.thread.let_through = True, 1
    machine.run.add(asked)
    for _ in range(3):
        machine.run.step()
    assert asked.status is RequestStatus.RUNNING and not asked.num_computed_tokens
    machine.thread.let_through = calls
    machine.thread.go_on()
    machine.engine.reset_cache(tiers=("disk",))
    machine.run.until_idle()
    machine.thread.release()
    assert machine.run.tokens(asked) == expected_output(PROMPT, 3, 256)
    assert answer(machine, request()) == 2
    assert answer(Machine([disk(tmp_path)]), request()) == 4


def damaged(change: Callable[[Path], None]) -> Callable[[Path], None]:
    """`change` one file among those that the first answer has written."""

    def damage(folder: Path) -> None:
        change(sorted(path for path in folder.rglob("*") if path.is_file())[3])

    return damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(bytes(data))


def other_tokens(path: Path) -> None:
    path.write_bytes(encode(bytes.fromhex(path.name), (9, 9, 9, 9), bytes(1024)))


def cut(path: Path) -> None:
    os.truncate(path, 100)


def empty(path: Path) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("change", [flip, other_tokens, cut, empty])
def test_a_damaged_record_costs_what_lies_before_it(tmp_path: Path, change: Callable[[Path], None]) -> None:
    answer(Machine([disk(tmp_path)]), request(max_tokens=1))
    damaged(change)(tmp_path)
    again = Machine([disk(tmp_path)])
    rows = answer(again, request(max_tokens=1))
    assert 2 < rows <= 42
    assert again.thread.problems["corrupt"] == 1
    assert answer(Machine([disk(tmp_path)]), request(max_tokens=1)) == 2, "it was replaced"


class Broken(CacheTier):
    """Raises in one hook."""

    name = "broken"

    def __init__(self, hook: str, inner: CacheTier) -> None:
        for name in ("start", "contains", "get", "put", "remove", "clear", "usage", "close"):
            setattr(self, name, self.fail if name == hook else getattr(inner, name))

    def fail(self, *arguments: object) -> None:
        raise OSError("no such tier")


def stopped_clock(tier: CacheTier, info: TierInfo) -> InlineThread:
    return InlineThread(tier, info, clock=lambda: 0.0)


@pytest.mark.parametrize("hook", ["start", "contains", "get", "put", "usage"])
def test_a_tier_that_raises_costs_at_most_the_recompute(tmp_path: Path, hook: str) -> None:
    answer(Machine([disk(tmp_path)]), request())
    again = Machine([Broken(hook, disk(tmp_path))], make_thread=stopped_clock)
    assert answer(again, request()) <= 44
    assert again.thread.problems["error"] >= 1
    assert not again.thread.is_available
    rows = answer(again, request([*PROMPT, 5, 6, 7, 8], 1))
    assert rows <= 46


@pytest.mark.parametrize("number", [-1, 0, 1])
@pytest.mark.parametrize("reply", [b"", b"x" * 2000, 7])
def test_nonsense_of_a_tier_costs_at_most_the_recompute(reply: object, number: int) -> None:
    class Nonsense(HostTier):
        name = "nonsense"

        def contains(self, keys: Sequence[bytes]) -> Sequence[bool]:
            return [True] * len(keys)

        def get(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
            return [reply] * (len(keys) + number)  # type: ignore[list-item]

    machine = Machine([Nonsense(2**20)])
    assert answer(machine, request()) == 44
    assert sum(machine.thread.problems.values()) >= 1


def test_a_tier_that_hangs_is_overtaken(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request())
    again = Machine([disk(tmp_path)], seconds_a_token=1e-4)
    again.thread.held = True
    assert answer(again, request()) == 44, "the look-up never came back"
    asked = request([*PROMPT[:40], 7, 7])
    again.thread.release()
    assert answer(again, asked) == 4


def test_a_load_that_hangs_is_overtaken_from_the_front(tmp_path: Path) -> None:
    long = [number % 50 + 1 for number in range(82)]  # twenty blocks and two tokens
    answer(Machine([disk(tmp_path)]), request(long, 1))
    again = Machine([disk(tmp_path)], seconds_a_token=1e-4)
    speed = again.engine.scheduler.tiers.speeds[0].call
    speed.base, speed.slope, speed.measured = 1.6e-6, 1e-6, True  # so the first call is for eight blocks
    again.thread.held, again.thread.let_through = True, 2  # the look-up and the last eight blocks
    asked = request(long, 1)
    rows = answer(again, asked)
    assert rows == 12 * 4 + 2, "computed up to where the loaded blocks begin, and behind them"
    assert again.run.last(asked).promoted_tokens == {"disk": 32}
    assert again.run.last(asked).cached_tokens == 32


def test_a_full_tier_is_counted(tmp_path: Path) -> None:
    machine = Machine([DiskTier(str(tmp_path), 1000)])
    answer(machine, request())
    assert machine.thread.problems["full"] > 0
    assert machine.engine.stats().cache.tiers[0].blocks == 0


def small_queue(tier: CacheTier, info: TierInfo) -> InlineThread:
    return InlineThread(tier, info, write_bytes=3000)


def test_a_queue_without_room_drops_and_counts(tmp_path: Path) -> None:
    machine = Machine([disk(tmp_path)], seconds_a_token=1e-6, make_thread=small_queue)
    machine.thread.held = True
    answer(machine, request())
    assert machine.thread.problems["dropped"] == 8 + 1, "a batch of two found room"
    machine.thread.release()
    assert machine.engine.stats().cache.tiers[0].blocks == 2


def test_a_herd_loads_once(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request(max_tokens=1))
    again = Machine([disk(tmp_path)])
    herd = [request([*PROMPT[:40], number, number], 2) for number in range(4)]
    before = again.runner.num_rows
    for tokens, asked in zip(again.run.generate(*herd), herd, strict=True):
        assert tokens == expected_output(asked.prompt_token_ids, 2, 256)
    assert again.runner.num_rows - before == 4 * 3
    assert again.engine.stats().cache.tiers[0].promoted_blocks == 10


def test_an_abort_while_blocks_are_loaded_leaks_nothing(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request())
    again = Machine([disk(tmp_path)], seconds_a_token=1e3)
    again.thread.held, again.thread.let_through = True, 2
    asked = request()
    again.run.add(asked)
    again.run.step()
    again.run.step()
    assert asked.status == "running"
    again.run.take(again.engine.abort(asked.request_id))
    again.thread.release()
    again.run.until_idle()
    assert answer(again, request()) == 4


@pytest.mark.parametrize("seed", range(6))
def test_crowds_in_a_small_pool_get_the_right_answers(tmp_path: Path, seed: int) -> None:
    """Evictions, preemptions, copies and loads in the same steps; half of the runs with real threads."""
    random = Random(seed)
    stems = [[random.randrange(1, 200) for _ in range(40)] for _ in range(4)]
    rules = [DemotionRule("write-back"), DemotionRule("write-through")]
    tiers: list[CacheTier] = [HostTier(30_000), disk(tmp_path)]
    shape = Shape(num_blocks=32, max_num_seqs=5, max_num_batched_tokens=40, max_model_len=100)
    make = InlineThread if seed % 2 else TierThread
    machine = Machine(tiers, rules, shape, seconds_a_token=[1e-3, 1e-6][seed % 2], make_thread=make)
    for _ in range(12):
        crowd = [
            request([*random.choice(stems)[: random.randrange(5, 41)], random.randrange(200)], 12) for _ in range(6)
        ]
        for tokens, asked in zip(machine.run.generate(*crowd), crowd, strict=True):
            assert tokens == expected_output(asked.prompt_token_ids, 12, 256)
    machine.engine.close()
    stats = machine.engine.stats().cache
    assert stats.eviction_count > 50
    assert stats.promoted_tokens or make is TierThread  # a real thread may lose every race against a model of no cost
    assert not any(tier.problems for tier in stats.tiers)


def fail(machine: Machine, number: int) -> None:
    """The `number`-th step from now raises; its requests end, as the engine's thread sees to."""
    machine.runner.fail_at = [machine.engine.scheduler._step + number]
    asked = request()
    machine.run.add(asked)
    with pytest.raises(RuntimeError, match="on purpose"):
        machine.run.until_idle()
    machine.run.take(machine.engine.fail_running())
    machine.run.until_idle()
    machine.runner.fail_at = ()


@pytest.mark.parametrize("windows", [0, 40])
def test_what_a_failed_step_was_to_store_is_stored_at_its_next_hit(windows: int) -> None:
    shape = replace(SHAPE, num_window_blocks=windows)
    info = {"window": 10, "num_window_layers": 1, "window_block_bytes": 512} if windows else {}
    tier = HostTier(2**20)
    machine = Machine([tier], shape=shape, info=info)
    fail(machine, 2)
    assert tier.usage().records == 0
    assert answer(machine, request()) == 2, "it is cached"
    assert tier.usage().records == (2 * 10 if windows else 10) + (2 if windows else 1)


def test_a_reset_of_one_tier_leaves_the_others_what_they_have(tmp_path: Path) -> None:
    rules = [DemotionRule("write-through")] * 2
    machine = Machine([HostTier(2**20), disk(tmp_path)], rules)
    answer(machine, request(max_tokens=1))
    machine.engine.reset_cache(tiers=("disk",))
    answer(machine, request([*PROMPT, 9], max_tokens=1))
    stored = {tier.name: (tier.demoted_blocks, tier.blocks) for tier in machine.engine.stats().cache.tiers}
    assert stored == {"host": (10, 10), "disk": (20, 10)}


def test_who_goes_first_in_the_queue_gets_the_blocks_for_both(tmp_path: Path) -> None:
    answer(Machine([disk(tmp_path)]), request(max_tokens=1))
    machine = Machine([disk(tmp_path)], shape=replace(SHAPE, max_num_seqs=1), seconds_a_token=1e3)
    machine.thread.held = True
    last, first = request([*PROMPT[:40], 5, 5], 1, priority=1), request(max_tokens=1)
    machine.run.add(last, first)
    for _ in range(3):
        machine.run.step()
    promises = machine.engine.scheduler._promotion._promises
    assert [promises[each.request_id].is_follower for each in (first, last)] == [False, True]
    machine.thread.release()
    machine.run.until_idle()
    assert machine.run.last(first).promoted_tokens == {"disk": 40}
    assert machine.run.last(last).promoted_tokens == {} and machine.run.last(last).cached_tokens == 40


def test_two_that_wait_for_the_same_blocks_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """The first of them is no longer there when its answer comes."""
    answer(Machine([disk(tmp_path)]), request(max_tokens=1))
    machine = Machine([disk(tmp_path)], seconds_a_token=1e3)
    machine.thread.held = True
    crowd = [request([*PROMPT[:40], number], 1) for number in range(3)]
    machine.run.add(*crowd)
    machine.run.step()
    machine.run.take(machine.engine.abort(crowd[0].request_id))
    for _ in range(4):
        machine.run.step()
    machine.thread.release()
    machine.run.until_idle()
    assert [machine.run.last(each).cached_tokens for each in crowd[1:]] == [40, 40]
