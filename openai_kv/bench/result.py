"""The figures of one phase."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

from openai_kv.bench.reply import Reply


@dataclass(frozen=True, slots=True)
class Result:
    """What a phase of one round gave; times in seconds."""

    label: str
    round: int
    replies: tuple[Reply, ...]

    @property
    def answered(self) -> list[Reply]:
        return [reply for reply in self.replies if reply.error is None]

    @property
    def errors(self) -> list[str]:
        return [reply.error for reply in self.replies if reply.error is not None]

    @property
    def wall(self) -> float:
        """From the first request sent to the last answer complete."""
        return max(reply.start + reply.total for reply in self.replies) - min(reply.start for reply in self.replies)

    @property
    def output_tokens(self) -> int:
        return sum(reply.completion_tokens for reply in self.answered)

    @property
    def output_rate(self) -> float:
        """Output tokens a second, prefill included."""
        return self.output_tokens / self.wall

    @property
    def prompt_tokens(self) -> int:
        return sum(reply.prompt_tokens for reply in self.answered)

    @property
    def cached_tokens(self) -> int | None:
        """None if the server doesn't say."""
        known = [reply.cached_tokens for reply in self.answered if reply.cached_tokens is not None]
        return sum(known) if known else None

    @property
    def ttfts(self) -> list[float]:
        return [reply.ttft for reply in self.answered if reply.ttft is not None]

    @property
    def gaps(self) -> list[float]:
        return [gap for reply in self.answered for gap in reply.gaps]


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Inclusive, interpolated; None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return quantiles(values, n=100, method="inclusive")[percent - 1]
