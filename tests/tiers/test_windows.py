"""Tiers where some layers, or all, see a window only: over the fake runner, which checks what every row sees of it."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from openai_kv.cache.content_key import window_key
from openai_kv.cache.demotion import DemotionRule
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier
from openai_kv.tiers.tier_thread import TierThread
from tests.fakes import expected_output
from tests.harness import Shape, make_request
from tests.tiers.inline import InlineThread, Machine

WINDOW = 10
SHAPE = Shape(num_window_blocks=40)
SMALL = Shape(num_blocks=24, max_num_seqs=4, max_num_batched_tokens=16, max_model_len=80, num_window_blocks=10)
PROMPT = list(range(1, 43))  # ten blocks and two tokens
NEEDED = 3  # blocks that hold the window before token 40
THROUGH, BACK = DemotionRule("write-through"), DemotionRule("write-back")
each_layout = pytest.mark.parametrize("full_bytes", [1024, 0], ids=["some layers", "all layers"])


def machine(
    *tiers: CacheTier, rule: DemotionRule = THROUGH, shape: Shape = SHAPE, full_bytes: int = 1024, **options: object
) -> Machine:
    info = {"window": WINDOW, "num_window_layers": 1, "block_bytes": full_bytes, "window_block_bytes": 512}
    return Machine(tiers, [rule] * len(tiers), shape, info, **options)  # type: ignore[arg-type]


def answer(machine: Machine, prompt: Sequence[int] = PROMPT, max_tokens: int = 3) -> int:
    """How many rows an answer took; it is the right one."""
    before, asked = machine.runner.num_rows, make_request(prompt, max_tokens)
    (tokens,) = machine.run.generate(asked)
    assert tokens == expected_output(prompt, max_tokens, 256)
    return machine.runner.num_rows - before


def promoted(machine: Machine) -> int:
    (tier,) = machine.engine.stats().cache.tiers
    return tier.promoted_blocks


def window_keys(tier: HostTier, machine: Machine, prompt: Sequence[int] = PROMPT) -> list[bytes]:
    """Of its whole blocks, where the tier has them."""
    blocks = machine.engine.scheduler.manager.store.tree.find_prefix("", tuple(prompt)).blocks
    keys = [window_key(block.content_key) for block in blocks]
    return [key for key, known in zip(keys, tier.contains(keys), strict=True) if known]


@each_layout
def test_after_a_restart_only_the_window_before_the_tail_is_loaded(full_bytes: int) -> None:
    tier = HostTier(2**20)
    first = machine(tier, full_bytes=full_bytes)
    assert answer(first) == 44
    assert tier.usage().records == (22 if full_bytes else 11), "ten blocks of the prompt and one of the output"
    again = machine(tier, full_bytes=full_bytes)
    assert answer(again) == 4
    assert promoted(again) == NEEDED + (10 if full_bytes else 0)
    assert again.engine.stats().cache.promoted_tokens == {"host": 40}
    assert answer(again) == 2, "an exact hit of what was loaded"


@each_layout
def test_what_was_evicted_comes_back(full_bytes: int) -> None:
    tier = HostTier(2**20)
    run = machine(tier, rule=BACK, shape=SMALL, full_bytes=full_bytes)
    answer(run)
    for number in range(4):
        answer(run, [100 + number] * 60)
    assert answer(run) == 4
    assert run.engine.stats().cache.promoted_tokens == {"host": 40}


@each_layout
def test_a_window_that_was_evicted_alone_comes_back_too(full_bytes: int) -> None:
    """Without it the blocks that are still cached are of no use."""
    run = machine(HostTier(2**20), rule=BACK, shape=replace(SMALL, num_blocks=200), full_bytes=full_bytes)
    answer(run)
    for number in range(4):
        answer(run, [100 + number] * 60)
    assert run.engine.stats().cache.eviction_count == 0
    assert answer(run) <= 4 + 12
    assert run.engine.stats().cache.promoted_tokens["host"] >= 28


@each_layout
@pytest.mark.parametrize("lost", range(10))
def test_a_lost_part_shortens_what_can_be_had(lost: int, full_bytes: int) -> None:
    tier = HostTier(2**20)
    first = machine(tier, full_bytes=full_bytes)
    answer(first, max_tokens=1)
    keys = window_keys(tier, first)
    assert len(keys) == 10
    tier.remove([keys[lost]])
    again = machine(tier, full_bytes=full_bytes)
    expected = 40 if lost < 10 - NEEDED else 4 * lost
    assert answer(again, max_tokens=1) == 42 - expected
    assert again.engine.stats().cache.promoted_tokens == {"host": expected}
    assert answer(machine(tier, full_bytes=full_bytes), max_tokens=1) == 2, "it was computed and stored again"


def test_a_damaged_part_costs_what_lies_before_it() -> None:
    tier = HostTier(2**20)
    first = machine(tier)
    answer(first, max_tokens=1)
    key = window_keys(tier, first)[8]
    tier.put({key: tier.get([key])[0][:-1] + b"?"})  # type: ignore[index]
    again = machine(tier)
    assert answer(again, max_tokens=1) == 42 - 4, "the last block was loaded"
    assert again.thread.problems["corrupt"] == 1


@each_layout
def test_what_was_computed_anew_in_the_middle_is_stored(full_bytes: int) -> None:
    """A turn that ends where neither pool nor tier have the window any more brings it back for both."""
    tier = HostTier(2**20)
    run = machine(tier, shape=replace(SMALL, num_blocks=200), full_bytes=full_bytes)
    answer(run, max_tokens=1)
    tier.remove(window_keys(tier, run)[2:6])
    for number in range(4):
        answer(run, [100 + number] * 60)
    answer(run, [*PROMPT[:24], 99, 98], 1)
    assert answer(machine(tier, full_bytes=full_bytes), [*PROMPT[:24], 97], 1) == 1


def test_a_load_that_hangs_is_overtaken_from_the_front() -> None:
    long = [number % 50 + 1 for number in range(82)]
    tier, shape = HostTier(2**20), replace(SHAPE, num_window_blocks=12, max_num_batched_tokens=16)
    answer(machine(tier, shape=shape), long, 1)
    again = machine(tier, shape=shape, seconds_a_token=1e-4)
    again.engine.scheduler._promotion.speed.step.value = 1e-4
    call = again.engine.scheduler.tiers.speeds[0].call
    call.base, call.slope, call.measured = 1.6e-6, 1e-6, True  # so the first call is for eight blocks
    again.thread.held, again.thread.let_through = True, 2  # the look-up and the last eight blocks
    assert answer(again, long, 1) == 12 * 4 + 2
    assert again.engine.stats().cache.promoted_tokens == {"host": 32}


@each_layout
@pytest.mark.parametrize("seed", range(6))
def test_crowds_in_small_pools_get_the_right_answers(seed: int, full_bytes: int) -> None:
    """Evictions, preemptions, copies, jumps and loads in the same steps; half of the runs with real threads."""
    random = Random(seed)
    stems = [[random.randrange(1, 200) for _ in range(40)] for _ in range(4)]
    rule = (THROUGH, BACK, DemotionRule("after-hits", 1))[seed % 3]
    shape = Shape(32, max_num_seqs=5, max_num_batched_tokens=24, max_model_len=100, num_window_blocks=14)
    make = InlineThread if seed % 2 else TierThread
    options = {"make_thread": make, "seconds_a_token": [1e-3, 1e-6][seed % 2]}
    run = machine(HostTier(60_000), HostTier(2**20), rule=rule, shape=shape, full_bytes=full_bytes, **options)
    run.engine.scheduler._promotion.speed.step.value = 1e-4
    for _ in range(12):
        texts = [
            [*random.choice(stems)[: random.randrange(4, 41)], *random.choices(range(1, 200), k=random.randrange(9))]
            for _ in range(random.randrange(1, 6))
        ]
        asked = [make_request(text, random.randrange(1, 12)) for text in texts]
        for request, tokens in zip(asked, run.run.generate(*asked), strict=True):
            assert tokens == expected_output(request.prompt_token_ids, request.params.max_tokens, 256)
    assert run.engine.stats().cache.window.evictions > 0  # type: ignore[union-attr]
    for thread in run.threads:
        thread.close(20)
