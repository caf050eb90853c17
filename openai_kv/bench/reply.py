"""One answer, as the client saw it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reply:
    """Seconds from sending: to the first text, to the end, and between the pieces of text.

    `cached_tokens` is None where the server doesn't say; `error` has the reason where there was no full answer.
    """

    start: float
    ttft: float | None = None
    total: float = 0.0
    gaps: tuple[float, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    text: str = ""
    error: str | None = None
