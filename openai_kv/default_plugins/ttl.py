"""ttl: each use lends a block some time to live; what expires first goes first.

After CacheTTL (Li et al. 2025, arXiv:2511.02230), which keeps an agent's blocks for as long as its tool is likely to
take. There the time comes from measured tools, here from the settings. No time is a limit: while there is room, blocks
stay.
"""

from collections.abc import Callable

from openai_kv.cache.candidate_queue import Priority
from openai_kv.cache.policy import BlockInfo, EvictionPolicy, PriorityPolicy
from openai_kv.hookspecs import hookimpl


class TTLPolicy(PriorityPolicy):
    """Seconds by the request that uses the block; `conversation`: a second or later turn, or one with a session id.

    Of several uses the longest counts, from the latest one on. 0: not kept at all.
    """

    name = "ttl"

    def __init__(
        self, conversation: float = 1800, chat: float = 600, completion: float = 300, generate: float = 300
    ) -> None:
        self._conversation = conversation
        self._by_kind = {"chat": chat, "completion": completion, "generate": generate}
        self._lifetime: dict[BlockInfo, float] = {}

    def lifetime(self, block: BlockInfo) -> float:
        if block.turn > 1 or block.session_id is not None:
            return self._conversation
        return self._by_kind.get(block.kind, self._by_kind["completion"])

    def on_insert(self, block: BlockInfo) -> None:
        self._lifetime[block] = self.lifetime(block)

    def on_access(self, block: BlockInfo) -> None:
        self._lifetime[block] = max(self._lifetime[block], self.lifetime(block))
        super().on_access(block)

    def admit(self, block: BlockInfo) -> bool:
        return self._lifetime[block] > 0

    def priority(self, block: BlockInfo) -> Priority:
        return block.last_accessed_time + self._lifetime[block], block.last_accessed

    def on_evict(self, block: BlockInfo) -> None:
        super().on_evict(block)
        del self._lifetime[block]


@hookimpl
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    register(TTLPolicy)
