"""After each step: outputs for the clients, records for the exporters."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from openai_kv.engine.detokenizer import Detokenizer, TextPiece
from openai_kv.engine.pressure import PressureLog
from openai_kv.exporting import ExporterGroup
from openai_kv.metrics import RequestStats, StepStats
from openai_kv.outputs import ModelRunnerOutput, RequestOutput, ScheduledRequest, SchedulerOutput
from openai_kv.recording import TraceRecorder
from openai_kv.request import FinishReason, Request, TokenLogprobs
from openai_kv.scheduler.scheduler import Scheduler


def _since(request: Request, moment: float | None) -> float | None:
    return None if moment is None else moment - request.arrival_time


class Reporter:
    """Sees every request after every step that touched it."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        exporters: ExporterGroup,
        recorder: TraceRecorder | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._detokenizer = detokenizer
        self._exporters = exporters
        self._recorder = recorder
        self._clock = clock
        self.attention_read_bytes = 0  # in all steps so far
        self._preemptions = 0
        self._pressure = PressureLog()

    def report(
        self, scheduler: Scheduler, scheduled: SchedulerOutput, output: ModelRunnerOutput, updated: Sequence[Request]
    ) -> list[RequestOutput]:
        now = self._clock()
        self.attention_read_bytes += output.attention_read_bytes
        said = _said(scheduled, output, updated)
        stats = self._step_stats(scheduler, scheduled, output, updated, said, now)
        self._exporters.on_step(stats)
        self._pressure.watch(stats.cache.memory_pressure)
        self._preemptions = scheduler.num_preemptions
        return [
            self.request_output(request, said.get(request.request_id, ()))
            for request in updated
            if request.finish_reason or request.request_id in said
        ]

    def _step_stats(
        self,
        scheduler: Scheduler,
        scheduled: SchedulerOutput,
        output: ModelRunnerOutput,
        updated: Sequence[Request],
        said: Mapping[str, Sequence[int]],
        now: float,
    ) -> StepStats:
        sampled = [request for request in updated if request.request_id in said]
        drafted = [item for item in scheduled.requests if item.num_drafts]
        first = tuple(now - request.arrival_time for request in sampled if request.first_token_time is None)
        gaps = tuple(now - request.last_token_time for request in sampled if request.last_token_time is not None)
        return StepStats(
            step=scheduled.step,
            step_seconds=now - scheduled.time,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            deferred=scheduler.num_deferred,
            scheduled_tokens=scheduled.num_tokens,
            computed_prompt_tokens=sum(map(_prompt_rows, scheduled.requests, updated)),
            generated_tokens=sum(map(len, said.values())),
            preemptions=scheduler.num_preemptions - self._preemptions,
            attention_read_bytes=output.attention_read_bytes,
            inter_token_seconds=gaps,
            time_to_first_token_seconds=first,
            cache=scheduler.cache_stats(),
            drafts=len(drafted),
            draft_tokens=sum(item.num_drafts for item in drafted),
            accepted_draft_tokens=sum(len(output.sampled_token_ids[item.request_id]) - 1 for item in drafted),
        )

    def request_output(self, request: Request, token_ids: tuple[int, ...] = ()) -> RequestOutput:
        """What the client of `request` gets, `token_ids` being new; of a finished one the exporters hear, too."""
        if token_ids:
            request.last_token_time = self._clock()
            request.first_token_time = request.first_token_time or request.last_token_time
        return self._output(request, self._detokenizer.take(request), token_ids)

    def failed_output(self, request: Request) -> RequestOutput:
        """The end of a request whose step failed; its text may be lost."""
        request.finish_reason = FinishReason.ERROR
        self._detokenizer.drop(request)
        return self._output(request, TextPiece("", ()), ())

    def _output(self, request: Request, piece: TextPiece, token_ids: tuple[int, ...]) -> RequestOutput:
        result = RequestOutput(
            request_id=request.request_id,
            text=piece.text,
            token_ids=token_ids,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            cached_tokens=request.num_cached_tokens or 0,
            cache_write_tokens=request.cache_write_tokens,
            hit_kind=request.hit_kind,
            finish_reason=request.finish_reason,
            stop_reason=request.stop_reason,
            queue_seconds=_since(request, request.first_scheduled_time),
            first_token_seconds=_since(request, request.first_token_time),
            total_seconds=self._clock() - request.arrival_time,
            num_preemptions=request.num_preemptions,
            choice=request.choice,
            logprobs=tuple(_take_logprobs(request, piece)),
            prompt_logprobs=tuple(request.prompt_logprobs) if request.num_output_tokens == len(token_ids) else (),
            promoted_tokens=request.promoted_tokens,
            embedding=request.embedding if request.finish_reason is FinishReason.STOP else None,
        )
        if request.finish_reason is not None:
            self._exporters.on_request_finished(_request_stats(request, result))
            if self._recorder is not None:
                self._recorder.record(request)
        return result


def _said(
    scheduled: SchedulerOutput, output: ModelRunnerOutput, updated: Sequence[Request]
) -> dict[str, tuple[int, ...]]:
    """What this step added to each request that sampled: what came after a stop it dropped."""
    pairs = zip(scheduled.requests, updated, strict=True)
    return {
        request.request_id: tuple(request.token_ids[item.num_known_tokens :])
        for item, request in pairs
        if request.request_id in output.sampled_token_ids
    }


def _take_logprobs(request: Request, piece: TextPiece) -> Iterator[TokenLogprobs]:
    """Those of the tokens that `piece` is the text of."""
    if request.params.logprobs is None:
        return
    told, request.logprobs = request.logprobs[: len(piece.token_starts)], request.logprobs[len(piece.token_starts) :]
    for entry, start in zip(told, piece.token_starts, strict=False):
        yield replace(entry, text_offset=start)


def _prompt_rows(item: ScheduledRequest, request: Request) -> int:
    """How many of the item's rows are prompt positions."""
    left = request.num_prompt_tokens - item.num_computed_tokens
    return min(len(item.token_ids), left) if left > 0 else 0


def _request_stats(request: Request, output: RequestOutput) -> RequestStats:
    assert request.finish_reason is not None
    return RequestStats(
        info=request.info,
        finish_reason=request.finish_reason,
        hit_kind=output.hit_kind,
        num_prompt_tokens=output.num_prompt_tokens,
        num_output_tokens=output.num_output_tokens,
        num_cached_tokens=output.cached_tokens,
        cache_write_tokens=output.cache_write_tokens,
        max_tokens=request.params.max_tokens,
        num_preemptions=request.num_preemptions,
        queue_seconds=output.queue_seconds,
        first_token_seconds=output.first_token_seconds,
        total_seconds=output.total_seconds,
    )
