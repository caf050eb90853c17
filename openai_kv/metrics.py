"""Records that engine and server report, and whoever exports them hears of."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from openai_kv.request import RequestInfo


@dataclass(frozen=True, slots=True)
class TierStats:
    """One cache tier. `name` is where it is: host, disk or remote; `plugin` what it is. None: it can't tell.

    Totals since the start: blocks stored there, and loaded from there. Like `blocks` they count records: where some
    layers see a window only, a block has one for these and one for the others. `problems`: by kind how often it was
    full, raised (error) or answered with a damaged record (corrupt), and blocks not stored for want of time (dropped).
    `available` False: it raised or hangs, and is left alone for a while.
    """

    name: str
    plugin: str
    blocks: int | None
    num_bytes: int | None
    max_bytes: int | None
    demoted_blocks: int
    promoted_blocks: int
    problems: Mapping[str, int]
    available: bool


@dataclass(frozen=True, slots=True)
class WindowStats:
    """The blocks of a window group's pool, counted like those of CacheStats."""

    total: int
    free: int
    cached: int
    referenced: int
    pinned: int
    pinned_idle: int
    evictions: int

    @property
    def used(self) -> int:
        return self.cached + self.referenced

    @property
    def memory_pressure(self) -> float:
        return (self.referenced + self.pinned_idle) / self.total


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The cache between two steps. Blocks: free + cached + referenced == total; the pinned ones are among them.

    `hits` (requests) and `hit_tokens` have an entry for each of exact, radix and partial.
    `pins` counts hard pins, `expired_blocks` those dropped after a day unused, `pinned_idle` the pinned blocks that no
    running request holds. `promoted_tokens`: those of the hit ones that came from tiers, by location; `tiers`.
    `window`: of the window group, if there is one.
    """

    total: int
    free: int
    cached: int
    referenced: int
    block_size: int
    referenced_slots_used: int
    tree_nodes: int
    exact_entries: int
    namespaces: int
    hits: Mapping[str, int]
    hit_tokens: Mapping[str, int]
    miss_count: int
    prompt_tokens: int
    evictions_by_policy: Mapping[str, int]
    duplicate_blocks: int
    soft_pinned: int = 0
    pinned: int = 0
    pins: int = 0
    expired_blocks: int = 0
    pinned_idle: int = 0
    promoted_tokens: Mapping[str, int] = field(default_factory=dict)
    tiers: tuple[TierStats, ...] = ()
    window: WindowStats | None = None

    @property
    def used(self) -> int:
        return self.cached + self.referenced

    @property
    def memory_pressure(self) -> float:
        """Share of the blocks that no new request can get: neither free nor evictable, soft-pinned ones can go.

        Of the group that has fewer left, if there are two.
        """
        pressure = (self.referenced + self.pinned_idle) / self.total
        return pressure if self.window is None else max(pressure, self.window.memory_pressure)

    @property
    def hit_count(self) -> int:
        return sum(self.hits.values())

    @property
    def eviction_count(self) -> int:
        return sum(self.evictions_by_policy.values())


@dataclass(frozen=True, slots=True)
class PinRecord:
    """A hard pin. Times are Unix seconds. `num_cached_tokens` were there when it was ordered; `hits`: of the whole."""

    pin_id: str
    label: str | None
    num_tokens: int
    num_blocks: int
    num_cached_tokens: int
    created: int
    expires_at: int
    hits: int


@dataclass(frozen=True, slots=True)
class StepStats:
    """One engine step. Times in seconds. `deferred`: waiting for blocks that another request computes.

    `drafts` sequences had rows for `draft_tokens` guesses, of which `accepted_draft_tokens` came true.
    """

    step: int
    step_seconds: float
    running: int
    waiting: int
    deferred: int
    scheduled_tokens: int
    computed_prompt_tokens: int
    generated_tokens: int
    preemptions: int
    attention_read_bytes: int
    inter_token_seconds: tuple[float, ...]
    time_to_first_token_seconds: tuple[float, ...]
    cache: CacheStats
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One finished request, aborted ones too. Times in seconds since arrival, None where it never got there."""

    info: RequestInfo
    finish_reason: str
    hit_kind: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    cache_write_tokens: int
    max_tokens: int
    num_preemptions: int
    queue_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float


@dataclass(frozen=True, slots=True)
class LookupStats:
    """One look-up that was taken. `resumed`: not to be counted: back from preemption, so that it was before, or tiers
    may add to it, so that one more of these follows.

    `reuse_gap_seconds`: of each block it hit that had been hit before, the time since that hit.
    """

    info: RequestInfo
    hit_kind: str
    num_hit_tokens: int
    reuse_gap_seconds: tuple[float, ...]
    resumed: bool


@dataclass(frozen=True, slots=True)
class TransferStats:
    """Records that went to a tier (`direction` demote) or came from it (promote), in one call of `seconds`."""

    tier: str
    direction: str
    num_blocks: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EvictionStats:
    """One evicted block. `lifetime_seconds` since it was cached, `idle_seconds` since its last use.

    `seconds`: what choosing it and taking it out of the cache took.
    """

    policy: str
    block_id: int
    num_tokens: int
    hit_count: int
    lifetime_seconds: float
    idle_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """What one API call generated, all its sequences together. Times in seconds since the call arrived.

    The parameters are those in effect. `operation` is chat or text_completion. Of several sequences: `hit_kind` of the
    first, the longest `queue_seconds`, sums of tokens and preemptions, and the tokens of the longest output.
    """

    operation: str
    request_model: str
    response_id: str
    stream: bool
    num_choices: int
    output_type: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    frequency_penalty: float
    presence_penalty: float
    stop: tuple[str, ...]
    seed: int | None
    session_id: str | None
    finish_reasons: tuple[str, ...]
    hit_kind: str
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    cache_write_tokens: int
    num_reasoning_tokens: int
    longest_output_tokens: int
    num_preemptions: int
    queue_seconds: float | None
    first_token_seconds: float | None
    total_seconds: float
    error_code: str | None


@dataclass(frozen=True, slots=True)
class HttpStats:
    """One HTTP exchange; `status` 499: the client left. `route` is a template of the contract or `unmatched`.

    `arrival_time` is Unix time. `error_code` is the envelope's, also of an error in mid-stream (then `status` is 200).
    `traceparent` and `tracestate` are the client's headers, unchecked. `generation`: if it got as far as the engine.
    `upstream`: the configured pattern of the one it was passed on to, which is at `upstream_address`, `upstream_port`.
    """

    method: str
    route: str
    status: int
    seconds: float
    request_id: str = ""
    arrival_time: float = 0.0
    server_address: str = ""
    server_port: int = 0
    error_code: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    generation: GenerationStats | None = None
    upstream: str | None = None
    upstream_address: str = ""
    upstream_port: int = 0


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Constants an exporter may label its series with; `versions` has version (ours), python, torch, transformers."""

    model_name: str
    max_model_len: int
    block_size: int
    num_blocks: int
    cache_dtype: str
    backend: str
    policy: str
    versions: Mapping[str, str] = field(default_factory=dict)
