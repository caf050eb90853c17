"""Speculation through the whole engine: fewer steps, the same tokens, and nothing in the cache that was but guessed."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from openai_kv.drafting.step_costs import StepCosts
from openai_kv.exporting import ExporterGroup
from openai_kv.request import FinishReason, Request, Retention
from tests.engine.test_constraint import GRAMMAR
from tests.engine.test_engine import Recorder
from tests.fakes import FakeModelRunner, Model, expected_output, next_token, stutter
from tests.grammar.grammars import EOS
from tests.harness import Run, Shape, build_engine, exported, fake_runner, make_request

PROMPT = list(range(10, 33))
MODES = ("ngram", "tree", "auto")


def loop(context: Sequence[int], vocab_size: int) -> int:
    return context[-5:][0]


def make(
    shape: Shape | None = None, *, model: Model = stutter, speculation: str = "auto", info: Any = None, **options: Any
) -> tuple[Run, FakeModelRunner]:
    shape = shape or Shape()
    runner = fake_runner(shape, **(info or {}))
    runner.model = model
    return Run(build_engine(runner, shape, speculation=speculation, **options)), runner


def expected(prompt: Sequence[int], num_tokens: int, model: Model = stutter) -> list[int]:
    return expected_output(prompt, num_tokens, 256, model)


def num_drafted(runner: FakeModelRunner) -> int:
    return sum(len(drafts) for step in runner.drafted for drafts in step.values())


def check_cache(run: Run, runner: FakeModelRunner, texts: Sequence[Sequence[int]]) -> None:
    """Every chain in the tree begins a text that was really said, and its slots hold the K and V of just that."""
    tree = run.engine.scheduler.manager.store.tree
    for block in (block for node in tree.nodes() for block in node.blocks):
        assert runner.content(block.block_id)[: len(block.token_ids)] == list(block.token_ids)
        chain = [token for each in tree.chain(block) for token in each.token_ids]
        assert any(list(text[: len(chain)]) == chain for text in texts)


@pytest.mark.parametrize("mode", ["ngram", "auto"])
def test_a_text_that_repeats_itself_takes_far_fewer_steps(mode: str) -> None:
    run, runner = make(model=loop, speculation=mode)
    request = make_request(PROMPT, 60)
    assert run.generate(request) == [expected(PROMPT, 60, loop)]
    assert len(runner.rows) <= 15
    assert run.last(request).num_output_tokens == 60
    check_cache(run, runner, [request.token_ids])


def test_off_drafts_nothing() -> None:
    run, runner = make(model=loop, speculation="off")
    assert run.generate(make_request(PROMPT, 60)) == [expected(PROMPT, 60, loop)]
    assert (len(runner.rows), num_drafted(runner)) == (60, 0)


@pytest.mark.parametrize("mode", ["tree", "auto"])
def test_what_was_said_before_is_said_again_in_few_steps(mode: str) -> None:
    run, runner = make(model=next_token, speculation=mode)
    first, again = make_request(PROMPT, 40), make_request(PROMPT, 40)
    run.generate(first)
    assert len(runner.rows) == 40, "the fake model never repeats itself"
    assert run.generate(again) == [expected(PROMPT, 40, next_token)]
    assert len(runner.rows) - 40 <= 8
    assert run.last(again).hit_kind == "exact"
    longer = make_request([*PROMPT, *run.tokens(first)[:9]], 31)
    assert run.generate(longer) == [expected(PROMPT, 40, next_token)[9:]]
    check_cache(run, runner, [first.token_ids])


@pytest.mark.parametrize("mode", ["tree", "auto"])
def test_no_draft_comes_from_another_namespace(mode: str) -> None:
    run, runner = make(model=next_token, speculation=mode)
    run.generate(make_request(PROMPT, 40, namespace="theirs"))
    for namespace in ("ours", ""):
        assert run.generate(make_request(PROMPT, 40, namespace=namespace)) == [expected(PROMPT, 40, next_token)]
    assert num_drafted(runner) == 0
    run.generate(make_request(PROMPT, 40, namespace="theirs"))
    assert num_drafted(runner) > 30


def test_who_bypasses_the_cache_gets_no_draft_of_it() -> None:
    run, runner = make(model=next_token, speculation="tree")
    run.generate(make_request(PROMPT, 40))
    request = make_request(PROMPT, 40)
    request.info = replace(request.info, retention=Retention(explicit=True))
    assert run.generate(request) == [expected(PROMPT, 40, next_token)]
    assert num_drafted(runner) == 0


def traffic(seed: int) -> Iterator[Request]:
    """Shared prefixes, some prompts more than once."""
    rng = random.Random(seed)
    families = [[rng.randrange(4) for _ in range(24)] for _ in range(3)]
    for _ in range(50):
        family = rng.choice(families)
        prompt = [*family[: rng.choice((7, 16, 24))], *(rng.randrange(4) for _ in range(rng.choice((0, 0, 2))))]
        yield make_request(prompt, rng.randrange(1, 25))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_random_traffic_through_a_tiny_pool(mode: str, block_size: int) -> None:
    """Right and wrong drafts, aborts, preemptions and evictions: the text is the one without, the books are right."""
    rng = random.Random(block_size)
    shape = Shape(num_blocks=-(-128 // block_size), block_size=block_size, max_model_len=60, max_num_batched_tokens=16)
    recorder = Recorder()
    group = ExporterGroup([recorder])
    run, runner = make(shape, speculation=mode, exporters=group)
    requests: list[Request] = []
    for request in traffic(block_size):
        requests.append(request)
        run.add(request)
        for _ in range(rng.randrange(4)):
            if run.engine.has_work:
                run.step()
                run.engine.check_integrity()
        if rng.random() < 0.15:
            run.take(run.engine.abort(rng.choice(requests).request_id))
    run.until_idle()
    exported(group)
    for request in requests:
        told = run.tokens(request)
        assert told == expected(request.prompt_token_ids, len(told))
        if run.finish_reason(request) is FinishReason.LENGTH:
            assert len(told) == request.params.max_tokens
    check_cache(
        run, runner, [[*request.prompt_token_ids, *expected(request.prompt_token_ids, 30)] for request in requests]
    )
    right = sum(stats.accepted_draft_tokens for stats in recorder.steps)
    assert 0 < right <= sum(stats.draft_tokens for stats in recorder.steps) == num_drafted(runner)
    assert right < num_drafted(runner) or mode == "tree", "what the tree knows is seldom wrong where nothing is drawn"
    assert run.engine.stats().cache.eviction_count > 0
    assert max(sum(map(len, step.values())) for step in runner.rows) <= 16
    assert run.engine.scheduler._drafter._tracks == {}


def test_preemption() -> None:
    shape = Shape(num_blocks=10, max_model_len=40)
    run, runner = make(shape)
    prompts = [[number, 2, 3, 4, 5] for number in range(6)]
    assert run.generate(*(make_request(prompt, 20) for prompt in prompts)) == [expected(p, 20) for p in prompts]
    assert run.engine.stats().preemptions > 0
    assert num_drafted(runner) > 0


def test_a_draft_takes_no_block_that_another_needs_to_grow() -> None:
    """Both fit to their ends exactly; a draft may use what is left of a request's own last block."""
    shape = Shape(num_blocks=18, block_size=4, max_model_len=36)
    run, runner = make(shape, model=loop)
    requests = [make_request([number, *range(100, 107)], 28) for number in range(2)]
    assert run.generate(*requests) == [expected(request.prompt_token_ids, 28, loop) for request in requests]
    assert [request.num_preemptions for request in requests] == [0, 0]
    assert run.engine.stats().cache.eviction_count == 0
    assert num_drafted(runner) > 20


def test_rows_of_drafts_are_what_others_leave_of_the_budget() -> None:
    run, runner = make(Shape(max_num_batched_tokens=6, max_num_seqs=4), model=loop)
    prompts = [[number, *PROMPT] for number in range(4)]
    assert run.generate(*(make_request(prompt, 20) for prompt in prompts)) == [expected(p, 20, loop) for p in prompts]
    assert max(sum(map(len, step.values())) for step in runner.rows) == 6
    assert num_drafted(runner) > 0


def test_a_step_with_dear_rows_has_none_for_drafts() -> None:
    run, runner = make(model=loop, step_seconds=float)
    assert run.generate(make_request(PROMPT, 30)) == [expected(PROMPT, 30, loop)]
    assert num_drafted(runner) == 0


@pytest.mark.parametrize("max_tokens", [1, 17, 100])
def test_the_length_is_kept_to_the_token(max_tokens: int) -> None:
    run, _ = make(Shape(max_model_len=50), model=loop)
    request = make_request(PROMPT, max_tokens)
    wanted = min(max_tokens, 50 - len(PROMPT))
    assert run.generate(request) == [expected(PROMPT, wanted, loop)]
    assert (run.finish_reason(request), run.last(request).num_output_tokens) == (FinishReason.LENGTH, wanted)


# "abcdz" three times in the tiny tokenizer's ids; loop() goes on like that, so an end is guessed along with the rest.
SAID = [ord(letter) - ord("!") for letter in "abcdz" * 3]
ENDS: dict[str, dict[str, Any]] = {
    "stop string": {"stop": ("dz",)},
    "stop string later": {"stop": ("dz",), "min_tokens": 12},
    "stop string kept": {"stop": ("dz",), "min_tokens": 12, "include_stop_str_in_output": True},
    "stop token": {"stop_token_ids": (SAID[-1],)},
    "end of sequence": {},
    "length": {"stop": ("za!",), "ignore_eos": True},
}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_within_a_draft(name: str) -> None:
    eos = frozenset({SAID[-1] if name == "end of sequence" else 257})
    outcomes, caches, steps = [], [], []
    for mode in ("off", "auto"):
        run, runner = make(model=loop, speculation=mode, info={"eos_token_ids": eos})
        request = make_request(SAID, 33, **ENDS[name])
        tokens, last = run.generate(request), run.last(request)
        text = "".join(output.text for output in run.outputs[request.request_id])
        outcomes.append((tokens, text, last.finish_reason, last.stop_reason, last.num_output_tokens))
        stats = run.engine.stats().cache
        caches.append((stats.cached, stats.tree_nodes, stats.duplicate_blocks, stats.exact_entries))
        steps.append(len(runner.rows))
        check_cache(run, runner, [request.token_ids[:-1]])
    assert outcomes[0] == outcomes[1]
    assert caches[0] == caches[1]
    assert steps[1] < steps[0]
    assert outcomes[0][2] is (FinishReason.LENGTH if name == "length" else FinishReason.STOP)


def test_choices_and_log_probabilities() -> None:
    told = []
    for mode in ("off", "auto"):
        run, runner = make(speculation=mode)
        choices = [make_request(PROMPT, 24, choice=choice, logprobs=2) for choice in range(3)]
        tokens = run.generate(*choices)
        assert tokens == [expected(PROMPT, 24)] * 3
        told.append([[e for o in run.outputs[r.request_id] for e in o.logprobs] for r in choices])
    assert told[0] == told[1]
    assert all(len(entries) == 24 for entries in told[1])
    assert num_drafted(runner) > 0


def test_an_output_held_to_a_grammar_is_not_drafted() -> None:
    shape = Shape(num_blocks=128, max_model_len=256)
    run, runner = make(shape, model=next_token, info={"vocab_size": 250, "eos_token_ids": frozenset({EOS})})
    for _ in range(2):
        request = make_request([1, 2], 150, grammar=GRAMMAR)
        run.generate(request)
        assert run.finish_reason(request) is FinishReason.STOP
    assert num_drafted(runner) == 0


@pytest.mark.parametrize("steps", [3, 5, 8])
def test_an_abort_between_drafts(steps: int) -> None:
    run, runner = make()
    request = make_request(PROMPT, 60)
    run.add(request)
    for _ in range(steps):
        run.step()
    run.take(run.engine.abort(request.request_id))
    run.until_idle()
    said = run.tokens(request)
    assert said == expected(PROMPT, len(said))
    check_cache(run, runner, [request.token_ids])
    assert run.generate(make_request(PROMPT, 60)) == [expected(PROMPT, 60)]


def test_a_step_that_fails_with_drafts() -> None:
    run, runner = make(model=loop)
    first = make_request(PROMPT, 60)
    run.add(first)
    for _ in range(4):
        run.step()
    assert runner.drafted[-1]
    runner.fail_at = {5}
    with pytest.raises(RuntimeError, match="on purpose"):
        run.step()
    run.take(run.engine.fail_running())
    run.until_idle()
    assert run.generate(make_request(PROMPT, 60)) == [expected(PROMPT, 60, loop)]


def test_reports_add_up() -> None:
    recorder, shape = Recorder(), Shape(max_num_batched_tokens=8)
    group = ExporterGroup([recorder])
    run, runner = make(shape, exporters=group)
    requests = [make_request(PROMPT, 25), make_request([1, 2], 27)]
    run.generate(*requests)
    exported(group)

    def total(name: str) -> int:
        return sum(getattr(stats, name) for stats in recorder.steps)

    assert total("scheduled_tokens") == runner.num_rows
    assert total("computed_prompt_tokens") == len(PROMPT) + 2
    assert total("generated_tokens") == 52
    assert total("draft_tokens") == num_drafted(runner) > total("accepted_draft_tokens") > 0
    assert total("drafts") == sum(map(len, runner.drafted))
    assert sum(len(stats.time_to_first_token_seconds) for stats in recorder.steps) == 2
    told = sum(len(run.outputs[request.request_id]) for request in requests)
    assert sum(len(stats.inter_token_seconds) for stats in recorder.steps) == told - 2
    assert runner.num_rows == len(PROMPT) + 2 + 50 + num_drafted(runner) - total("accepted_draft_tokens")


def test_a_step_without_rows_where_two_took_thrice_as_long_as_one() -> None:
    """At a busy start; the step after a reset only tells how things stand."""
    run, runner = make(step_seconds=StepCosts.of({1: 1.0, 2: 3.0}))
    run.engine.reset_cache()
    run.until_idle()
    assert runner.rows == [{}]
