"""A request as the engine sees it: what was asked (frozen) and how far it got (mutable, engine thread only)."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import add
from typing import Protocol


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Pooling(StrEnum):
    """How the final hidden states of a prompt become one vector: their mean, or the last of them."""

    MEAN = "mean"
    LAST = "last"


class TokenConstraint(Protocol):
    """Which tokens may come next in one output; engine thread only."""

    @property
    def finished(self) -> bool:
        """Nothing may follow any more."""

    @property
    def failed(self) -> bool:
        """It is finished because it can't be followed any further."""

    def mask(self) -> bytes:
        """A bit per token id, lowest id in the lowest bit: 1 where the token may come next. May wait for it."""

    def advance(self, token_id: int) -> None:
        """Take the next token, drawn by the mask."""


class Grammar(Protocol):
    """What an output has to look like."""

    def start(self) -> TokenConstraint: ...


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How output tokens are drawn and when the output ends; ranges are checked by whoever builds it.

    `temperature` below 1e-5 is greedy. `top_k` -1 or 0 is off. `seed` None: the engine draws one per request.
    `logprobs`, `prompt_logprobs`: how many of the most likely tokens to report at each position; None: no report.
    `grammar`: the output has to follow it, and ends when nothing may follow.
    `visible_token_ids`: special tokens that appear in the text all the same.
    `pooling`: a vector is wanted, and no token; goes with `max_tokens` 0.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    grammar: Grammar | None = None
    visible_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One position of a text: natural logs of the softmax over the model's raw logits.

    `top` are the most likely tokens with theirs, falling, of equals the lower id first; `rank` counts in that order
    from 1. `text_offset`: characters of output text before the token.
    """

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()
    text_offset: int = 0


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """The first `num_tokens` tokens of the prompt are to stay cached for `ttl` seconds from their last use."""

    num_tokens: int
    ttl: float


@dataclass(frozen=True, slots=True)
class PinOrder:
    """The whole prompt is to be pinned, for `ttl` seconds, under `pin_id`."""

    pin_id: str
    ttl: float
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """What a request wants kept in the cache. `in_memory`: what it writes never goes to a slower tier.

    `explicit`: nothing behind the last of the `breakpoints` is stored; without one nothing is read either.
    """

    explicit: bool = False
    breakpoints: tuple[Breakpoint, ...] = ()
    in_memory: bool = False
    pin: PinOrder | None = None

    @property
    def bypasses(self) -> bool:
        """The cache is neither read nor written."""
        return self.explicit and not self.breakpoints

    def num_stored(self, num_tokens: int) -> int:
        """How many of a request's first `num_tokens` tokens may be found by others."""
        if not self.explicit:
            return num_tokens
        return min(num_tokens, max((each.num_tokens for each in self.breakpoints), default=0))


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """What the cache and its policies may know of a request; hints never change what matches, `namespace` does.

    `namespace` isolates the cache (empty: the shared one). `kind` is chat, completion, generate or embedding. `turn`
    counts the user messages of a chat, 1 for a plain prompt. `retention` is what is to be kept of it, and how long.
    """

    request_id: str
    num_prompt_tokens: int
    namespace: str = ""
    session_id: str | None = None
    kind: str = "completion"
    turn: int = 1
    retention: Retention = Retention()


@dataclass(slots=True, eq=False)
class Request:
    """One sequence in the engine. `num_computed_tokens` of `token_ids` have their K and V in the cache.

    `promoted_tokens` of the cached ones came from tiers, by location.
    `choice` numbers the answers to one prompt. `logprobs` are those of output tokens that no output has told of yet,
    `prompt_logprobs` those of the prompt without its first token. `embedding` is the vector as far as it is pooled,
    float32.
    """

    info: RequestInfo
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    arrival_time: float
    seed: int = 0
    choice: int = 0
    priority: int = 0
    status: RequestStatus = RequestStatus.WAITING
    token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_cached_tokens: int | None = None
    cache_write_tokens: int = 0
    promoted_tokens: Mapping[str, int] = field(default_factory=dict)
    hit_kind: str = "miss"
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    constraint: TokenConstraint | None = None
    embedding: "array[float] | None" = None
    request_id: str = field(init=False)
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.request_id, self.num_prompt_tokens = self.info.request_id, len(self.prompt_token_ids)
        computes_all = self.params.pooling is not Pooling.MEAN or self.info.retention.bypasses
        assert computes_all, "a prefix that is read from the cache would be missing from the mean"
        self.token_ids = list(self.prompt_token_ids)
        if self.params.grammar is not None:
            self.constraint = self.params.grammar.start()

    @property
    def order(self) -> tuple[int, float]:
        """Smaller goes first: by priority, then by arrival."""
        return self.priority, self.arrival_time

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Then every position of the prompt has yet to be run, whatever the cache holds."""
        begun, num_found = self.first_scheduled_time is not None, len(self.prompt_logprobs)
        return self.params.prompt_logprobs is not None and not (begun and num_found == self.num_prompt_tokens - 1)

    def pool(self, part: "array[float]") -> None:
        """Take what one step contributes to the vector."""
        self.embedding = part if self.embedding is None else array("f", map(add, self.embedding, part))

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> Sequence[int]:
        return self.token_ids[self.num_prompt_tokens :]
