"""Breakpoints, explicit mode and pins as the scheduler carries them out."""

from collections.abc import Sequence
from dataclasses import replace

from openai_kv.request import Breakpoint, FinishReason, PinOrder, Request, Retention
from tests.fakes import expected_output
from tests.harness import Run, Shape, build_engine, fake_runner, make_request

SHAPE = Shape(num_blocks=32, max_num_batched_tokens=16)
PIN = Retention(pin=PinOrder("pin", 60.0))


def new_run(shape: Shape = SHAPE) -> Run:
    return Run(build_engine(fake_runner(shape), shape))


def request(prompt: Sequence[int], retention: Retention, max_tokens: int = 4) -> Request:
    made = make_request(prompt, max_tokens, temperature=0.0)
    made.info = replace(made.info, retention=retention)
    return made


def explicit(*ends: int) -> Retention:
    return Retention(explicit=True, breakpoints=tuple(Breakpoint(end, 60.0) for end in ends))


def test_an_explicit_request_repeats_up_to_its_last_breakpoint() -> None:
    run = new_run()
    first, again = request(range(30), explicit(9, 17)), request(range(30), explicit(9, 17))
    assert run.generate(first) == run.generate(again) == [expected_output(range(30), 4, 256)]
    assert (run.last(first).cached_tokens, run.last(first).cache_write_tokens) == (0, 17)
    assert (run.last(again).cached_tokens, run.last(again).cache_write_tokens) == (17, 0)
    cache = run.engine.stats().cache
    assert (cache.cached, cache.soft_pinned, cache.exact_entries) == (5, 5, 0)


def test_an_explicit_request_without_a_breakpoint_leaves_the_cache_alone() -> None:
    run = new_run()
    run.generate(make_request(range(30)))
    before = run.engine.stats().cache
    bypass = request(range(30), explicit())
    assert run.generate(bypass) == [expected_output(range(30), 4, 256)]
    after = run.engine.stats().cache
    assert (run.last(bypass).cached_tokens, run.last(bypass).cache_write_tokens) == (0, 0)
    assert (after.free, after.cached, after.tree_nodes) == (before.free, before.cached, before.tree_nodes)
    assert after.prompt_tokens == before.prompt_tokens + 30


def test_a_breakpoint_at_the_end_of_the_prompt_repeats_exactly() -> None:
    run = new_run()
    for _ in range(2):
        last = request(range(10), explicit(10))
        run.generate(last)
    assert (run.last(last).cached_tokens, run.last(last).hit_kind) == (10, "exact")


def test_an_exact_hit_restarts_the_time_of_a_new_breakpoint() -> None:
    run = new_run()
    run.generate(make_request(range(10)))
    run.generate(request(range(10), Retention(breakpoints=(Breakpoint(10, 60.0),))))
    assert run.engine.stats().cache.soft_pinned == 3


def test_nobody_waits_for_blocks_that_will_not_be_stored() -> None:
    run = new_run()
    leader, follower = request(range(40), explicit(9)), make_request([*range(40), 99], 4, temperature=0.0)
    run.add(leader)
    run.step()
    run.add(follower)
    run.step()
    assert run.engine.scheduler.num_deferred == 0
    run.until_idle()
    other, aside = make_request(range(100, 140)), request([*range(100, 140), 99], explicit())
    run.add(other)
    run.step()
    run.add(aside)
    run.step()
    assert run.engine.scheduler.num_deferred == 0
    run.until_idle()
    assert run.tokens(aside) == expected_output([*range(100, 140), 99], 4, 256)


def test_up_to_the_breakpoint_a_herd_computes_once() -> None:
    run = new_run()
    herd = [request([*range(24), number], explicit(24)) for number in range(50, 54)]
    assert run.generate(*herd) == [expected_output([*range(24), number], 4, 256) for number in range(50, 54)]
    assert sorted(run.last(each).cached_tokens for each in herd) == [0, 24, 24, 24]


def test_a_pinned_prompt_is_there_and_an_aborted_one_is_not() -> None:
    run = new_run()
    pins = run.engine.scheduler.manager.pins
    gone = request(range(100, 130), PIN, max_tokens=0)
    run.add(gone)
    run.step()
    run.take(run.engine.abort(gone.request_id))
    run.until_idle()
    assert (run.finish_reason(gone), pins.list()) == (FinishReason.ABORT, [])
    done = request(range(30), PIN, max_tokens=0)
    run.generate(done)
    assert [(pin.pin_id, pin.num_tokens) for pin in pins.list()] == [("pin", 30)]
    assert run.engine.stats().cache.pinned == 8


def test_pins_take_nothing_from_what_a_running_request_may_need() -> None:
    """A quarter is pinned, half is soft-pinned: a request of three quarters runs alone and is never preempted."""
    shape = Shape(num_blocks=16, max_num_batched_tokens=16)
    run = new_run(shape)
    run.generate(request(range(16), PIN, max_tokens=0))
    run.generate(request(range(100, 132), Retention(breakpoints=(Breakpoint(32, 60.0),)), max_tokens=0))
    cache = run.engine.stats().cache
    assert (cache.pinned, cache.soft_pinned) == (4, 8)
    large = make_request(range(200, 230), 18, temperature=0.0)
    assert run.generate(large) == [expected_output(range(200, 230), 18, 256)]
    stats = run.engine.stats()
    assert (stats.preemptions, stats.cache.pinned, stats.cache.soft_pinned) == (0, 4, 0)


def test_preempted_in_explicit_mode_it_says_the_same() -> None:
    shape = Shape(num_blocks=14, max_num_batched_tokens=32)
    run = new_run(shape)
    prompts = [range(100 * number, 100 * number + 12) for number in range(1, 4)]
    outputs = run.generate(*(request(prompt, explicit(6), max_tokens=16) for prompt in prompts))
    assert outputs == [expected_output(prompt, 16, 256) for prompt in prompts]
    assert run.engine.stats().preemptions > 0
