"""Read conversations off a trace that has no session ids: who goes on where an earlier request ended."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from openai_kv.simulate.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class Habits:
    """What was seen, to be drawn from: seconds between a conversation's successive requests, requests in each."""

    gaps: tuple[float, ...]
    turns: tuple[int, ...]


def observe(requests: Sequence[TraceRequest]) -> Habits:
    """Raises ValueError: nobody ever came back.

    A request continues the latest one whose whole blocks it begins with; one block is not enough, as that is the
    system prompt of everybody. The last block of a prompt is mostly partial, so it does not count.
    """
    ends: dict[int, int] = {}  # last whole block: the request that ended there
    roots: list[int] = []
    gaps = []
    for index, request in enumerate(requests):
        before = next((ends[block] for block in reversed(request.hash_ids[1:]) if block in ends), None)
        roots.append(index if before is None else roots[before])
        if before is not None:
            gaps.append(request.time - requests[before].time)
        if len(request.hash_ids) > 2:
            ends[request.hash_ids[-2]] = index
    if not gaps:
        raise ValueError("no request of the trace continues an earlier one")
    return Habits(tuple(gaps), tuple(Counter(roots).values()))
