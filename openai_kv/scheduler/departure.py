"""Departure: a request ends, and all that was kept for it goes."""

from dataclasses import dataclass

from openai_kv.cache.manager import KVCacheManager
from openai_kv.drafting.drafter import Drafter
from openai_kv.request import FinishReason, Request, RequestStatus
from openai_kv.scheduler.herd import Herd
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.queues import RequestQueues
from openai_kv.scheduler.request_blocks import RequestBlocks


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """The way out of both queues, the counterpart of Admission."""

    queues: RequestQueues
    manager: KVCacheManager
    promotion: Promotion
    herd: Herd
    blocks: RequestBlocks
    drafter: Drafter

    def finish(self, request: Request, reason: FinishReason) -> None:
        """What it computed stays cached, but after an error."""
        if request.status is RequestStatus.RUNNING:
            self.blocks.free(request, keep=reason is not FinishReason.ERROR)
        self.queues.end(request, reason)
        self.herd.forget(request)
        self.promotion.forget(request)
        self.drafter.forget(request.request_id)
        request.cache_write_tokens = self.manager.cache_write_tokens(request.request_id)
        self.manager.finish(request.info)
