"""SampledTokens: what a step said for a request, up to its end."""

from dataclasses import dataclass

from openai_kv.cache.manager import KVCacheManager
from openai_kv.drafting.drafter import Drafter
from openai_kv.outputs import ModelRunnerOutput, ScheduledRequest
from openai_kv.request import FinishReason, Request
from openai_kv.scheduler.departure import Departure
from openai_kv.scheduler.request_blocks import RequestBlocks
from openai_kv.scheduler.stopping import StopCheck


@dataclass(frozen=True, slots=True, eq=False)
class SampledTokens:
    """Adds tokens to requests and ends those that have said all they will."""

    manager: KVCacheManager
    blocks: RequestBlocks
    drafter: Drafter
    stop_check: StopCheck
    departure: Departure

    def take(self, request: Request, item: ScheduledRequest, output: ModelRunnerOutput) -> None:
        """The rows of `item` are computed and cached, but for its drafts."""
        token_ids = output.sampled_token_ids.get(request.request_id, ())
        logprobs = output.logprobs.get(request.request_id, ())
        self.drafter.observe(request.request_id, token_ids)
        for index, token_id in enumerate(token_ids):
            if index:
                self.blocks.cache(request, 1)  # the draft before this token was right, so its K and V are
            request.logprobs.extend(logprobs[index : index + 1])
            self._append(request, token_id)
            if request.finish_reason is not None:
                return
        if item.num_drafts:
            self.manager.trim_slots(request.request_id, request.num_computed_tokens)
        if request.params.max_tokens == 0 and request.num_computed_tokens == request.num_prompt_tokens:
            reason = FinishReason.LENGTH if request.params.pooling is None else FinishReason.STOP
            self.departure.finish(request, reason)

    def _append(self, request: Request, token_id: int) -> None:
        request.token_ids.append(token_id)
        if request.constraint is not None:
            request.constraint.advance(token_id)
        reason = self.stop_check.take(request, token_id)
        if reason is not None:
            self.departure.finish(request, reason)
