"""Where guesses are from, by the name of the setting."""

from collections.abc import Callable, Sequence

from openai_kv.drafting.repetition import repeat
from openai_kv.drafting.track import Guess, Source, Track

Continuation = Callable[[str, Sequence[int], int], Sequence[int]]  # KVCacheManager.continuation


def remember(continuation: Continuation) -> Source:
    """The next tokens as another request with the same text had them, in the same namespace."""

    def guess(track: Track, length: int) -> Guess | None:
        tokens = continuation(track.request.request_id, track.request.token_ids, length)
        return Guess("tree", tokens) if tokens else None

    return guess


def sources_of(speculation: str, continuation: Continuation) -> tuple[Source, ...]:
    """`speculation`: off, ngram, tree or auto."""
    tree = remember(continuation)
    by_name: dict[str, tuple[Source, ...]] = {"off": (), "ngram": (repeat,), "tree": (tree,), "auto": (tree, repeat)}
    return by_name[speculation]
