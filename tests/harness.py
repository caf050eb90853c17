"""Real scheduler, cache and engine over the fake model runner."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from itertools import count

from openai_kv.cache.demotion import Demotion, DemotionRule
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.pin import PinLimits
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.drafting.drafter import Drafter
from openai_kv.drafting.sources import sources_of
from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.engine.engine import Engine
from openai_kv.engine.overlapped_steps import OverlappedSteps
from openai_kv.engine.reporter import Reporter
from openai_kv.engine.steps import StepsInTurn
from openai_kv.exporting import ExporterGroup
from openai_kv.outputs import ModelRunner, RequestOutput
from openai_kv.recording import TraceRecorder
from openai_kv.request import FinishReason, Pooling, Request, RequestInfo, Retention, SamplingParams
from openai_kv.scheduler.scheduler import Scheduler, SchedulerLimits
from openai_kv.tiers.tiers import Tiers
from openai_kv.tokenizer import Tokenizer
from tests.fakes import FakeModelRunner, fake_info
from tests.tiny_tokenizer import tiny_tokenizer

NUMBERS = count()


@dataclass(frozen=True)
class Shape:
    """The sizes of an engine under test."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_model_len: int = 128
    num_hidden_slots: int = 8
    num_window_blocks: int = 0


def free_rows(rows: int) -> float:
    """A step takes as long with drafts as without, so whatever may be right is drafted."""
    return 1.0


def build_engine(
    runner: ModelRunner,
    shape: Shape,
    *,
    tokenizer: Tokenizer | None = None,
    policy: EvictionPolicy | None = None,
    exporters: ExporterGroup | None = None,
    on_started: Callable[[Request], None] | None = None,
    recorder: TraceRecorder | None = None,
    pin_limits: PinLimits | None = None,
    cache_clock: Callable[[], float] = time.monotonic,
    clock: Callable[[], float] = time.monotonic,
    tiers: Tiers | None = None,
    rules: Sequence[DemotionRule] = (),
    num_window_blocks: int = 0,
    speculation: str = "off",
    step_seconds: Callable[[int], float] = free_rows,
    max_draft_tokens: int = 8,
    overlapped: bool = False,
) -> Engine:
    """The object graph as the server builds it, around any runner."""
    group = exporters or ExporterGroup()
    manager = KVCacheManager(
        num_blocks=shape.num_blocks,
        block_size=shape.block_size,
        policy=policy or LRUPolicy(),
        num_hidden_slots=shape.num_hidden_slots,
        observer=group,
        pin_limits=pin_limits,
        clock=cache_clock,
        demotion=Demotion(runner.info.identity, rules, has_full=runner.info.block_bytes > 0),
        window=runner.info.window,
        num_window_blocks=num_window_blocks or shape.num_window_blocks,
    )
    limits = SchedulerLimits(
        shape.max_num_seqs, shape.max_num_batched_tokens, shape.max_model_len, runner.info.eos_token_ids
    )
    detokenizer = Detokenizer(tokenizer or tiny_tokenizer())
    drafter = Drafter(sources_of(speculation, manager.continuation), step_seconds, max_draft_tokens)
    scheduler = Scheduler(
        manager, limits, detokenizer, on_started=on_started, drafter=drafter, tiers=tiers, clock=clock
    )
    steps = OverlappedSteps(scheduler, runner) if overlapped else StepsInTurn(scheduler, runner)
    return Engine(scheduler, runner, detokenizer, Reporter(detokenizer, group, recorder), steps)


def fake_runner(shape: Shape, **info: object) -> FakeModelRunner:
    values: dict[str, object] = {
        "vocab_size": 256,
        "eos_token_ids": frozenset({257}),
        "max_model_len": shape.max_model_len,
    }
    return FakeModelRunner(
        shape.num_blocks, shape.block_size, fake_info(**(values | info)), num_window_blocks=shape.num_window_blocks
    )


def make_request(
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    namespace: str = "",
    choice: int = 0,
    priority: int = 0,
    **params: object,
) -> Request:
    number = next(NUMBERS)
    sampling = SamplingParams(max_tokens=max_tokens, **params)  # type: ignore[arg-type]
    info = RequestInfo(f"request-{number}", len(prompt), namespace=namespace)
    seed = sampling.seed or 0
    order = {"choice": choice, "priority": priority, "arrival_time": float(number)}
    return Request(info, tuple(prompt), sampling, seed=seed, **order)  # type: ignore[arg-type]


def embedding_request(prompt: Sequence[int], pooling: Pooling, **options: object) -> Request:
    """As the server makes it: a mean leaves the cache alone."""
    request = make_request(prompt, 0, **options)  # type: ignore[arg-type]
    request.info = replace(request.info, kind="embedding", retention=Retention(explicit=pooling is Pooling.MEAN))
    request.params = replace(request.params, pooling=pooling)
    return request


def exported(group: ExporterGroup) -> None:
    """Wait until every exporter has had what was reported."""
    done, waiting = wait(group.flush(), 20)
    assert done and not waiting


@dataclass
class Run:
    """Steps an engine until it is idle and gathers what each request got."""

    engine: Engine
    outputs: dict[str, list[RequestOutput]] = field(default_factory=dict)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.engine.add(request)

    def step(self) -> None:
        self.take(self.engine.step())

    def take(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            self.outputs.setdefault(output.request_id, []).append(output)

    def until_idle(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.engine.has_work:
                break
            self.step()
        assert not self.engine.has_work, "the engine makes no progress"
        self.engine.check_integrity()
        assert self.engine.stats().cache.referenced == 0

    def generate(self, *requests: Request) -> list[list[int]]:
        self.add(*requests)
        self.until_idle()
        return [self.tokens(request) for request in requests]

    def tokens(self, request: Request) -> list[int]:
        return [token for output in self.outputs[request.request_id] for token in output.token_ids]

    def last(self, request: Request) -> RequestOutput:
        output = self.outputs[request.request_id][-1]
        assert output.finish_reason is not None
        return output

    def finish_reason(self, request: Request) -> FinishReason | None:
        return self.last(request).finish_reason
