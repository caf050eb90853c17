"""Herd: requests that share a prefix nobody has computed yet let one of them compute it."""

from collections.abc import Iterable
from dataclasses import dataclass

from openai_kv.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class _Leader:
    """`request` is looked up to until it has computed `num_tokens`, or is no longer running."""

    request: Request
    num_tokens: int

    @property
    def busy(self) -> bool:
        return self.request.status is RequestStatus.RUNNING and self.request.num_computed_tokens < self.num_tokens


class Herd:
    """Who waits for whom. Followers come back block by block: the oldest waiter takes over from a leader that ends."""

    def __init__(self, running: Iterable[Request], block_size: int) -> None:
        """`running` stays the scheduler's own collection, oldest first."""
        self._running = running
        self._block_size = block_size
        self._leaders: dict[str, _Leader] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._leaders)

    def must_wait(self, request: Request) -> bool:
        """Whether the block it waits for is still being computed; if not, it may look again."""
        leader = self._leaders.get(request.request_id)
        if leader is None or leader.busy:
            return leader is not None
        self.forget(request)
        return False

    def defer(self, request: Request, num_cached_tokens: int) -> bool:
        """Have it wait if a running request is going to compute and store at least one whole block that it lacks.

        A further choice for a prompt waits for all of it: its whole block table but the tail is then the first one's.
        """
        whole, wanted = len(request.token_ids), num_cached_tokens + self._block_size
        if request.info.retention.bypasses:
            return False
        if request.choice and num_cached_tokens < whole and self._follow(request, whole):
            return True
        return wanted < whole and self._follow(request, wanted)

    def _follow(self, request: Request, wanted: int) -> bool:
        """Wait for whoever has yet to compute the first `wanted` tokens, if there is one."""
        prefix = request.token_ids[:wanted]
        for other in self._running:
            if _leads(other, request, wanted) and other.token_ids[:wanted] == prefix:
                self._leaders[request.request_id] = _Leader(other, wanted)
                return True
        return False

    def forget(self, request: Request) -> None:
        self._leaders.pop(request.request_id, None)


def _leads(leader: Request, request: Request, wanted: int) -> bool:
    """Whether tokens up to `wanted` are still to be computed by `leader`, for `request` to find."""
    stores = leader.info.retention.num_stored(wanted) == wanted
    return stores and leader.num_computed_tokens < wanted and leader.info.namespace == request.info.namespace
