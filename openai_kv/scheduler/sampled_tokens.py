"""SampledTokens: what a step said for a request, up to its end."""

from openai_kv.cache.manager import KVCacheManager
from openai_kv.drafting.drafter import Drafter
from openai_kv.outputs import ModelRunnerOutput, ScheduledRequest
from openai_kv.request import FinishReason, Request
from openai_kv.scheduler.departure import Departure
from openai_kv.scheduler.request_blocks import RequestBlocks
from openai_kv.scheduler.stopping import StopCheck


class SampledTokens:
    """Adds tokens to requests and ends those that have said all they will."""

    def __init__(
        self,
        manager: KVCacheManager,
        blocks: RequestBlocks,
        drafter: Drafter,
        stop_check: StopCheck,
        departure: Departure,
    ) -> None:
        self._manager = manager
        self._blocks = blocks
        self._drafter = drafter
        self._stop_check = stop_check
        self._departure = departure

    def take(self, request: Request, item: ScheduledRequest, output: ModelRunnerOutput) -> None:
        """The rows of `item` are computed and cached, but for its drafts."""
        token_ids = output.sampled_token_ids.get(request.request_id, ())
        logprobs = output.logprobs.get(request.request_id, ())
        self._drafter.observe(request.request_id, token_ids)
        for index, token_id in enumerate(token_ids):
            if index:
                self._blocks.cache(request, 1)  # the draft before this token was right, so its K and V are
            request.logprobs.extend(logprobs[index : index + 1])
            self._append(request, token_id)
            if request.finish_reason is not None:
                return
        if item.num_drafts:
            self._manager.trim_slots(request.request_id, request.num_computed_tokens)
        if request.params.max_tokens == 0 and request.num_computed_tokens == request.num_prompt_tokens:
            reason = FinishReason.LENGTH if request.params.pooling is None else FinishReason.STOP
            self._departure.finish(request, reason)

    def _append(self, request: Request, token_id: int) -> None:
        request.token_ids.append(token_id)
        if request.constraint is not None:
            request.constraint.advance(token_id)
        reason = self._stop_check.take(request, token_id)
        if reason is not None:
            self._departure.finish(request, reason)
