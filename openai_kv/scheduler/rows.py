"""Rows: what a step computes of a request, as the model runner needs it."""

from collections.abc import Sequence
from dataclasses import dataclass

from openai_kv.cache.manager import KVCacheManager
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import Pooling, Request
from openai_kv.scheduler.reserved_slots import ReservedSlots


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Makes the `ScheduledRequest`s of steps; the block tables are long enough by then."""

    manager: KVCacheManager
    reserved_slots: ReservedSlots

    def of(
        self, request: Request, num_tokens: int, hidden_slot: int | None = None, *, drafts: Sequence[int] = ()
    ) -> ScheduledRequest:
        """The next `num_tokens` of its tokens and `drafts`; none, but what is in `hidden_slot`: an exact hit."""
        start = request.num_computed_tokens
        complete = start + num_tokens == len(request.token_ids)
        return ScheduledRequest(
            request_id=request.request_id,
            token_ids=[*request.token_ids[start : start + num_tokens], *drafts],
            num_computed_tokens=start,
            block_ids=self.manager.block_ids(request.request_id),
            samples=complete and request.params.max_tokens > 0,
            params=request.params,
            seed=request.seed,
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=request.output_token_ids,
            hidden_slot=hidden_slot,
            store_slot=self.reserved_slots.reserve(request) if complete and num_tokens else None,
            choice=request.choice,
            prompt_logprobs=request.params.prompt_logprobs if request.lacks_prompt_logprobs else None,
            constraint=request.constraint,
            pooling=request.params.pooling if complete or request.params.pooling is Pooling.MEAN else None,
            window_block_ids=self.manager.window_block_ids(request.request_id),
            num_drafts=len(drafts),
        )
