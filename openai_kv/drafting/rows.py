"""Which drafts go into a step that is planned already: those that pay, where they make nobody wait or go."""

from collections.abc import Collection, Mapping, Sequence

from openai_kv.cache.manager import KVCacheManager
from openai_kv.drafting.drafter import Drafter, StepSize
from openai_kv.outputs import ScheduledRequest
from openai_kv.request import Request


class DraftRows:
    """Gives guesses at what decoding requests say next their slots, out of what all others leave of a step's budget."""

    def __init__(self, drafter: Drafter, manager: KVCacheManager, max_model_len: int) -> None:
        self._drafter = drafter
        self._manager = manager
        self._max_model_len = max_model_len

    def choose(
        self, running: Collection[Request], planned: Mapping[str, ScheduledRequest], budget: int
    ) -> dict[Request, Sequence[int]]:
        """`planned`: the step's requests by id; their block tables may be longer after this."""
        size = _size(planned, budget)
        if not self._drafter.may_pay(size):
            return {}
        decoding = (request for request in running if _decodes(request, planned.get(request.request_id)))
        drafts = self._drafter.propose({request: self._room(request) for request in decoding}, size)
        fitting = {request: self._fit(request, tokens, len(running)) for request, tokens in drafts.items()}
        return {request: tokens for request, tokens in fitting.items() if tokens}

    def _room(self, request: Request) -> int:
        """The token after the last draft has to be wanted, too."""
        wanted = request.params.max_tokens - request.num_output_tokens
        return min(wanted, self._max_model_len - len(request.token_ids)) - 1

    def _fit(self, request: Request, tokens: Sequence[int], spare: int) -> Sequence[int]:
        """Those that get slots: where blocks are short, no more than the request's last block still has."""
        length = len(request.token_ids)
        if not self._manager.allocate_slots(request.request_id, length + len(tokens), spare=spare):
            tokens = tokens[: -length % self._manager.block_size]
            self._manager.allocate_slots(request.request_id, length + len(tokens))
        return tokens


def _decodes(request: Request, item: ScheduledRequest | None) -> bool:
    """Its one row says a token after another one. A grammar knows what may come only when it has that other one."""
    decodes = item is not None and item.samples and len(item.token_ids) == 1 and request.num_output_tokens > 0
    return decodes and request.constraint is None


def _size(planned: Mapping[str, ScheduledRequest], budget: int) -> StepSize:
    items = planned.values()
    return StepSize(sum(len(item.token_ids) for item in items), sum(item.samples for item in items), budget)
