"""The whole engine over the fake model: whatever the cache, the batch or the pool does, the tokens are the same."""

import random
from collections.abc import Sequence

import pytest

from openai_kv.cache.hit import CacheHit
from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import RequestStats, StepStats
from openai_kv.metrics_exporter import MetricsExporter
from openai_kv.request import FinishReason, Request, RequestInfo
from tests.fakes import FakeModelRunner, expected_output
from tests.harness import Run, Shape, build_engine, exported, fake_runner, make_request

PROMPT = list(range(10, 33))


def make(shape: Shape | None = None, **info: object) -> tuple[Run, FakeModelRunner]:
    shape = shape or Shape()
    runner = fake_runner(shape, **info)
    return Run(build_engine(runner, shape)), runner


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    return expected_output(prompt, num_tokens, 256)


def test_cold_warm_and_exact() -> None:
    run, runner = make()
    assert run.generate(make_request(PROMPT)) == [expected(PROMPT, 8)]
    computed = runner.num_rows
    assert computed == len(PROMPT) + 7

    again = make_request(PROMPT)
    assert run.generate(again) == [expected(PROMPT, 8)]
    assert runner.num_rows - computed == 7, "an exact repeat runs the decode rows only"
    assert (run.last(again).cached_tokens, run.last(again).hit_kind) == (len(PROMPT), "exact")
    assert run.last(again).cache_write_tokens == 0

    longer = make_request([*PROMPT, 99])
    assert run.generate(longer) == [expected([*PROMPT, 99], 8)]
    assert run.last(longer).cached_tokens == len(PROMPT)


def test_the_next_turn_starts_where_the_last_answer_ended() -> None:
    run, _ = make()
    (answer,) = run.generate(make_request(PROMPT, 6))
    turn = make_request([*PROMPT, *answer, 77, 78])
    assert run.generate(turn) == [expected([*PROMPT, *answer, 77, 78], 8)]
    assert run.last(turn).cached_tokens == len(PROMPT) + 5, "the last token of an answer is never run"


def test_shared_prefix_ends_inside_a_block() -> None:
    shape = Shape(block_size=64, num_blocks=8, max_model_len=256, max_num_batched_tokens=256)
    run, _ = make(shape)
    shared = [i % 200 for i in range(47)]
    run.generate(make_request([*shared, 201, 202]))
    second = make_request([*shared, 203, 204, 205])
    assert run.generate(second) == [expected([*shared, 203, 204, 205], 8)]
    assert run.last(second).cached_tokens == 47
    assert run.last(second).hit_kind == "partial"


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prefill(chunk: int) -> None:
    shape = Shape(max_num_batched_tokens=chunk, max_num_seqs=1)
    run, runner = make(shape)
    assert run.generate(make_request(PROMPT)) == [expected(PROMPT, 8)]
    chunks = sum(
        len(positions) > 0 and positions.start < len(PROMPT) for step in runner.rows for positions in step.values()
    )
    assert chunks == -(-len(PROMPT) // chunk)


def test_batch_of_eight_shares_steps() -> None:
    run, runner = make()
    prompts = [[number, *PROMPT[:number]] for number in range(1, 9)]
    assert run.generate(*(make_request(prompt) for prompt in prompts)) == [expected(prompt, 8) for prompt in prompts]
    assert max(len(step) for step in runner.rows) == 8


def test_decoding_goes_on_while_a_long_prompt_is_prefilled() -> None:
    run, runner = make(Shape(max_num_batched_tokens=8, max_num_seqs=4))
    short = make_request([1, 2, 3], 20)
    run.add(short)
    run.step()
    long = make_request([200 + i % 50 for i in range(60)], 2)
    assert run.generate(long) == [expected(list(long.prompt_token_ids), 2)]
    assert all(short.request_id in step for step in runner.rows[1:15])
    assert run.tokens(short) == expected([1, 2, 3], 20)


def test_preempted_requests_come_back_with_the_same_text() -> None:
    shape = Shape(num_blocks=10, max_model_len=40)
    run, _ = make(shape)
    prompts = [[number, 2, 3, 4, 5] for number in range(6)]
    assert run.generate(*(make_request(prompt, 20) for prompt in prompts)) == [expected(p, 20) for p in prompts]
    assert run.engine.stats().preemptions > 0
    assert run.engine.stats().cache.eviction_count > 0


def test_preemption_does_not_change_the_cache_counts() -> None:
    run, _ = make(Shape(num_blocks=10, max_model_len=40))
    requests = [make_request([number, 2, 3, 4, 5], 20) for number in range(6)]
    run.generate(*requests)
    assert any(request.num_preemptions for request in requests)
    for request in requests:
        assert run.last(request).cached_tokens + run.last(request).cache_write_tokens == 5


def test_one_request_of_full_length_fits_alone() -> None:
    run, _ = make(Shape(num_blocks=8, max_model_len=32))
    assert run.generate(make_request(PROMPT, 9)) == [expected(PROMPT, 9)]
    other = [5] * 20
    assert run.generate(make_request(other, 12), make_request(PROMPT, 9)) == [expected(other, 12), expected(PROMPT, 9)]


def test_a_cold_herd_computes_its_prefix_once() -> None:
    run, runner = make(Shape(num_blocks=128, max_num_seqs=16, max_num_batched_tokens=256))
    prompts = [[*PROMPT, 100 + number] for number in range(16)]
    assert run.generate(*(make_request(prompt, 3) for prompt in prompts)) == [expected(prompt, 3) for prompt in prompts]
    shared = sum(len(range(p.start, min(p.stop, len(PROMPT)))) for step in runner.rows for p in step.values())
    assert shared <= len(PROMPT) + 15 * (len(PROMPT) % 4)


def test_the_oldest_waiter_takes_over_when_the_leader_goes() -> None:
    run, runner = make(Shape(max_num_batched_tokens=8, max_num_seqs=4))
    leader, *others = [make_request([*PROMPT, 100 + number], 3) for number in range(3)]
    run.add(leader, *others)
    run.step()
    run.take(run.engine.abort(leader.request_id))
    run.until_idle()
    assert run.finish_reason(leader) is FinishReason.ABORT
    for other in others:
        assert run.tokens(other) == expected(list(other.prompt_token_ids), 3)
    positions = [p for step in runner.rows for p in step.values()]
    assert sum(5 in p for p in positions) == 1, "what the leader had computed is not computed again"
    assert sum(12 in p for p in positions) == 1, "the rest once, by the next in line"


def test_namespaces_do_not_share() -> None:
    run, _ = make()
    run.generate(make_request(PROMPT, namespace="a"))
    other = make_request(PROMPT, namespace="b")
    run.generate(other)
    assert run.last(other).cached_tokens == 0


@pytest.mark.parametrize("reached", [0, 1, 3])
def test_abort_frees_all_blocks_and_keeps_what_was_computed(reached: int) -> None:
    run, _ = make(Shape(max_num_batched_tokens=8))
    request = make_request(PROMPT, 30)
    run.add(request)
    for _ in range(reached):
        run.step()
    run.take(run.engine.abort(request.request_id))
    assert run.engine.abort(request.request_id) == []
    run.until_idle()
    assert run.finish_reason(request) is FinishReason.ABORT
    again = make_request(PROMPT)
    assert run.generate(again) == [expected(PROMPT, 8)]
    assert run.last(again).cached_tokens == min(8 * reached, len(PROMPT) if reached == 3 else 99)


def test_a_failing_step_ends_its_requests_and_nothing_else() -> None:
    run, runner = make(Shape(max_num_seqs=1))
    first, second = make_request(PROMPT), make_request([1, 2, 3])
    runner.fail_at = {2}
    run.add(first, second)
    run.step()
    with pytest.raises(RuntimeError, match="on purpose"):
        run.step()
    run.take(run.engine.fail_running())
    run.until_idle()
    assert run.finish_reason(first) is FinishReason.ERROR
    assert run.tokens(second) == expected([1, 2, 3], 8)


def test_a_failed_admission_leaves_no_wrong_content_behind() -> None:
    """The copy of a partial block was planned in the step that failed, so it never happened."""
    run, runner = make()
    run.generate(make_request(PROMPT))
    runner.fail_at = {run.engine.scheduler.schedule().step + 1}
    run.add(make_request([*PROMPT, 99]))
    with pytest.raises(RuntimeError):
        run.step()
    run.take(run.engine.fail_running())
    third = make_request([*PROMPT, 99])
    assert run.generate(third) == [expected([*PROMPT, 99], 8)]


def test_a_request_that_can_not_be_scheduled_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = make()
    manager = run.engine.scheduler.manager
    bad, good = make_request(PROMPT), make_request([1, 2, 3])
    lookup = manager.lookup

    def failing(token_ids: Sequence[int], info: RequestInfo) -> CacheHit:
        if info == bad.info:
            raise RuntimeError("on purpose")
        return lookup(token_ids, info)

    monkeypatch.setattr(manager, "lookup", failing)
    run.add(bad, good)
    with pytest.raises(RuntimeError, match="on purpose"):
        run.step()
    run.take(run.engine.fail_running())
    run.until_idle()
    assert run.finish_reason(bad) is FinishReason.ERROR
    assert run.tokens(good) == expected([1, 2, 3], 8)


def test_what_ended_in_a_failed_step_is_told_to_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request ends in the step in which taking in the second one's token fails."""
    run, _ = make()
    first, second, third = make_request(PROMPT, 1), make_request([1, 2, 3]), make_request([4, 5, 6])
    append = run.engine._detokenizer.append

    def failing(request: Request, token_id: int) -> str | None:
        if request is second:
            raise RuntimeError("on purpose")
        return append(request, token_id)

    monkeypatch.setattr(run.engine._detokenizer, "append", failing)
    run.add(first, second)
    with pytest.raises(RuntimeError, match="on purpose"):
        run.step()
    run.take(run.engine.fail_running())
    assert run.finish_reason(first) is run.finish_reason(second) is FinishReason.ERROR
    assert run.generate(third) == [expected([4, 5, 6], 8)]


def test_a_nearly_full_pool_does_not_admit_what_it_would_have_to_preempt() -> None:
    run, _ = make(Shape(num_blocks=9, max_model_len=36))
    old, new = make_request(list(range(100, 124)), 12), make_request(list(range(200, 212)), 4)
    run.generate(old, new)
    assert (old.num_preemptions, new.num_preemptions) == (0, 0)
    assert (run.tokens(old), run.tokens(new)) == (
        expected(list(old.prompt_token_ids), 12),
        expected(list(new.prompt_token_ids), 4),
    )


def test_stop_reasons() -> None:
    run, _ = make(eos_token_ids=frozenset({expected(PROMPT, 8)[2]}))
    eos = make_request(PROMPT, 8)
    run.generate(eos)
    assert (run.finish_reason(eos), run.last(eos).num_output_tokens) == (FinishReason.STOP, 3)
    ignoring = make_request(PROMPT, 8, ignore_eos=True)
    run.generate(ignoring)
    assert (run.finish_reason(ignoring), run.last(ignoring).num_output_tokens) == (FinishReason.LENGTH, 8)


def test_length_ends_at_max_model_len() -> None:
    run, _ = make(Shape(max_model_len=30))
    request = make_request(PROMPT, 100)
    assert run.generate(request) == [expected(PROMPT, 7)]
    assert run.finish_reason(request) is FinishReason.LENGTH


def test_max_tokens_zero_only_prefills() -> None:
    run, runner = make()
    cold, exact = make_request(PROMPT, 0), make_request(PROMPT, 0)
    assert run.generate(cold) == [[]]
    assert run.finish_reason(cold) is FinishReason.LENGTH
    assert runner.num_rows == len(PROMPT)
    assert run.generate(exact) == [[]]
    assert (runner.num_rows, run.last(exact).cached_tokens) == (len(PROMPT), len(PROMPT))


class Recorder(MetricsExporter):
    name = "recorder"

    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request_finished(self, stats: RequestStats) -> None:
        self.requests.append(stats)


def test_reports_add_up() -> None:
    recorder, shape = Recorder(), Shape(max_num_batched_tokens=8)
    runner = fake_runner(shape)
    group = ExporterGroup([recorder])
    run = Run(build_engine(runner, shape, exporters=group))
    requests = [make_request(PROMPT, 5), make_request([1, 2], 7)]
    run.generate(*requests)
    exported(group)
    assert sum(stats.scheduled_tokens for stats in recorder.steps) == runner.num_rows
    assert sum(stats.computed_prompt_tokens for stats in recorder.steps) == len(PROMPT) + 2
    assert sum(stats.generated_tokens for stats in recorder.steps) == 12
    assert sum(len(stats.time_to_first_token_seconds) for stats in recorder.steps) == 2
    assert sum(len(stats.inter_token_seconds) for stats in recorder.steps) == 10
    assert {stats.info.request_id: stats.num_output_tokens for stats in recorder.requests} == {
        requests[0].request_id: 5,
        requests[1].request_id: 7,
    }


def test_the_last_report_shows_what_an_abort_left() -> None:
    recorder, shape = Recorder(), Shape()
    group = ExporterGroup([recorder])
    run = Run(build_engine(fake_runner(shape), shape, exporters=group))
    running, waiting = make_request(PROMPT, 5), make_request([*PROMPT, 9], 5)
    run.add(running, waiting)
    run.step()
    exported(group)
    last = recorder.steps[-1]
    assert (last.running, last.waiting, last.deferred) == (1, 1, 1)
    for request in (running, waiting):
        run.take(run.engine.abort(request.request_id))
    run.until_idle()
    exported(group)
    last = recorder.steps[-1]
    assert (last.running, last.waiting, last.deferred, last.cache.referenced) == (0, 0, 0, 0)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_random_traffic_through_a_tiny_pool(block_size: int, seed: int) -> None:
    """Shared prefixes, aborts, preemptions and evictions at random: every finished text is the cold one."""
    rng = random.Random(seed)
    shape = Shape(num_blocks=-(-72 // block_size), block_size=block_size, max_model_len=60, max_num_batched_tokens=16)
    run, _ = make(shape)
    families = [[rng.randrange(4) for _ in range(24)] for _ in range(3)]
    requests = []
    for _ in range(60):
        family = rng.choice(families)
        prompt = [*family[: rng.randrange(1, 25)], *(rng.randrange(4) for _ in range(rng.randrange(6)))]
        requests.append(make_request(prompt, rng.randrange(1, 25)))
        run.add(requests[-1])
        for _ in range(rng.randrange(4)):
            run.step() if run.engine.has_work else None
        if rng.random() < 0.15:
            run.take(run.engine.abort(rng.choice(requests).request_id))
        run.engine.check_integrity()
    run.until_idle()
    finished = [request for request in requests if run.finish_reason(request) is FinishReason.LENGTH]
    assert len(finished) > 30
    for request in finished:
        assert run.tokens(request) == expected(list(request.prompt_token_ids), request.params.max_tokens)
    stats = run.engine.stats()
    assert stats.cache.eviction_count > 0
    assert stats.cache.hit_count > 0
