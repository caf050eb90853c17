"""A trace: requests as chains of block ids, without any text."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """`hash_ids`, root first: one id for each block of the prompt, which stands for the block and all before it."""

    time: float
    hash_ids: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    session_id: str | None = None
    turn: int = 1
    kind: str = "completion"
    answer_ids: tuple[int, ...] = ()

    @property
    def stored_ids(self) -> tuple[int, ...]:
        """All blocks that the request leaves."""
        return self.hash_ids + self.answer_ids


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order of replay. `block_tokens`: how many tokens a block id stands for."""

    name: str
    format: str
    block_tokens: int
    requests: tuple[TraceRequest, ...]

    @property
    def num_different_blocks(self) -> int:
        return len({hash_id for request in self.requests for hash_id in request.stored_ids})

    def hit_tokens(self, request: TraceRequest, num_blocks: int) -> int:
        """Tokens in the first `num_blocks` blocks of `request`; the last block may be partial."""
        return min(num_blocks * self.block_tokens, request.input_tokens)

    def first_half(self) -> "Trace":
        return replace(self, requests=self.requests[: len(self.requests) // 2])


class PrefixIds:
    """Renumbers block ids so that equal numbers mean equal prefixes, whatever the trace's own ids mean."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, Hashable], int] = {}
        self._roots: dict[Hashable, int] = {}

    def intern(self, hash_ids: Iterable[Hashable], scope: Hashable = None) -> tuple[int, ...]:
        """The ids of one chain, numbered from 0 by first appearance. Chains of different scopes share nothing."""
        ids = self._ids
        node = self._roots.setdefault(scope, -1 - len(self._roots))
        chain = []
        for hash_id in hash_ids:
            node = ids.setdefault((node, hash_id), len(ids))
            chain.append(node)
        return tuple(chain)
