"""Records the engine reports, and the base class of whoever exports them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from openai_kv.request import RequestInfo


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The cache between two steps. Blocks: free + cached + referenced == total; the pinned ones are among them.

    `hits` (requests) and `hit_tokens` have an entry for each of exact, radix and partial.
    `pins` counts hard pins.
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

    @property
    def used(self) -> int:
        return self.cached + self.referenced

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
    """One engine step. Times in seconds. `deferred`: waiting for blocks that another request computes."""

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
class EvictionStats:
    """One evicted block. `lifetime_seconds` since it was cached, `idle_seconds` since its last use."""

    policy: str
    block_id: int
    num_tokens: int
    hit_count: int
    lifetime_seconds: float
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class HttpStats:
    """One HTTP exchange; `status` 499: the client left. `route` is a template of the contract or `unmatched`."""

    method: str
    route: str
    status: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Constants an exporter may label its series with."""

    model_name: str
    max_model_len: int
    block_size: int
    num_blocks: int
    cache_dtype: str
    backend: str
    policy: str
    versions: Mapping[str, str] = field(default_factory=dict)


class MetricsExporter:
    """Base of exporters: override what you need; constructor arguments are the plugin's options.

    Calls come from the engine thread (`on_http_request`, `on_rejected` and `on_abort`: from the event loop) and are
    guarded: an exporter that raises is counted and the server goes on.
    """

    name: ClassVar[str]

    def start(self, info: ServerInfo) -> None:
        """Called once before the first record."""

    def on_step(self, stats: StepStats) -> None: ...

    def on_request_finished(self, stats: RequestStats) -> None: ...

    def on_eviction(self, stats: EvictionStats) -> None: ...

    def on_http_request(self, stats: HttpStats) -> None: ...

    def on_rejected(self, reason: str) -> None:
        """A request was refused for load: `max_num_queued_reqs` or `max_num_queued_tokens`."""

    def on_abort(self, reason: str) -> None:
        """A request was aborted: disconnect, slow_reader, deadline or shutdown."""

    def on_plugin_error(self, plugin: str, hook: str) -> None: ...

    def scrape(self) -> bytes | None:
        """The body of GET /metrics (Prometheus text format 0.0.4), or None if this exporter isn't pulled from."""
        return None
