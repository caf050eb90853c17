"""ReservedSlots: where the hidden states go that a step is about to compute, the last one of each prompt."""

from openai_kv.cache.manager import KVCacheManager
from openai_kv.request import Request


class ReservedSlots:
    """A slot is stored once its prompt is cached, or released: none is held by a request that has ended."""

    def __init__(self, manager: KVCacheManager) -> None:
        self._manager = manager
        self._slots: dict[str, int] = {}

    def reserve(self, request: Request) -> int | None:
        """None: the prompt is known or not to be stored, or there is no slot."""
        if request.num_output_tokens:
            return None
        slot = self._manager.reserve_hidden_slot(request.prompt_token_ids, request.info)
        if slot is not None:
            self._slots[request.request_id] = slot
        return slot

    def store(self, request: Request) -> None:
        """Its prompt's blocks were just cached, and its slot, if it has one, written."""
        slot = self._slots.pop(request.request_id, None)
        if slot is not None:
            self._manager.store_exact(request.request_id, request.prompt_token_ids, slot)

    def release(self, request: Request) -> None:
        slot = self._slots.pop(request.request_id, None)
        if slot is not None:
            self._manager.release_hidden_slot(slot)
