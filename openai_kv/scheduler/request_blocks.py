"""RequestBlocks: what a request has computed becomes cached content, and stays that when its blocks are freed."""

from dataclasses import dataclass

from openai_kv.cache.manager import KVCacheManager
from openai_kv.request import Request
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.reserved_slots import ReservedSlots


@dataclass(frozen=True, slots=True, eq=False)
class RequestBlocks:
    """The blocks of running requests, after each step and at the end."""

    manager: KVCacheManager
    promotion: Promotion
    reserved_slots: ReservedSlots

    def cache(self, request: Request, num_tokens: int) -> None:
        """That many tokens more have their K and V."""
        before, size = request.num_computed_tokens, self.manager.block_size
        after = request.num_computed_tokens = before + num_tokens
        self._settle(request)
        prompt_done = before < request.num_prompt_tokens <= after
        if prompt_done or before // size != after // size:
            self.manager.cache_blocks(request.request_id, request.token_ids[:after], with_tail=prompt_done)
        self.reserved_slots.store(request)
        if after >= request.num_prompt_tokens and not request.num_output_tokens:
            self.manager.pins.keep(request.info, request.prompt_token_ids, request.num_cached_tokens or 0)
        self.manager.slide(request.request_id, after)

    def _settle(self, request: Request) -> None:
        """Its hit is complete once the computed and the promoted blocks have met."""
        outcome = self.promotion.outcome(request)
        if outcome is None:
            return
        self.manager.settle(request.request_id, outcome.end)
        if request.num_cached_tokens is None:
            request.promoted_tokens = outcome.promoted
            found = self.manager.count_promoted(request.info, outcome.hit, outcome.promoted, count=request.choice == 0)
            request.num_cached_tokens, request.hit_kind = found.num_tokens, found.kind

    def free(self, request: Request, *, keep: bool) -> None:
        """Give the blocks back; what is computed stays cached, the partial tail too, unless a step failed halfway."""
        self.reserved_slots.release(request)
        if keep:
            computed = request.token_ids[: request.num_computed_tokens]
            self.manager.cache_blocks(request.request_id, computed, with_tail=True)
        self.manager.free(request.request_id)
