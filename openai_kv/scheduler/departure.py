"""Departure: a request ends, and all that was kept for it goes."""

from openai_kv.cache.manager import KVCacheManager
from openai_kv.drafting.drafter import Drafter
from openai_kv.request import FinishReason, Request, RequestStatus
from openai_kv.scheduler.herd import Herd
from openai_kv.scheduler.promotion import Promotion
from openai_kv.scheduler.queues import RequestQueues
from openai_kv.scheduler.request_blocks import RequestBlocks


class Departure:
    """The way out of both queues, the counterpart of Admission."""

    def __init__(
        self,
        queues: RequestQueues,
        manager: KVCacheManager,
        promotion: Promotion,
        herd: Herd,
        blocks: RequestBlocks,
        drafter: Drafter,
    ) -> None:
        self._queues = queues
        self._manager = manager
        self._promotion = promotion
        self._herd = herd
        self._blocks = blocks
        self._drafter = drafter

    def finish(self, request: Request, reason: FinishReason) -> None:
        """What it computed stays cached, but after an error."""
        if request.status is RequestStatus.RUNNING:
            self._blocks.free(request, keep=reason is not FinishReason.ERROR)
        self._queues.end(request, reason)
        self._herd.forget(request)
        self._promotion.forget(request)
        self._drafter.forget(request.request_id)
        request.cache_write_tokens = self._manager.cache_write_tokens(request.request_id)
        self._manager.finish(request.info)
