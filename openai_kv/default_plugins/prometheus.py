"""Prometheus metrics under vLLM's names, so that its dashboards work, and our own beside them."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram, generate_latest

from openai_kv.hookspecs import hookimpl
from openai_kv.metrics import (
    EvictionStats,
    HttpStats,
    LookupStats,
    RequestStats,
    ServerInfo,
    StepStats,
    TransferStats,
)
from openai_kv.metrics_exporter import MetricsExporter
from openai_kv.prometheus.buckets import (
    DECISION_BUCKETS,
    FIRST_TOKEN_BUCKETS,
    LATENCY_BUCKETS,
    REUSE_BUCKETS,
    Buckets,
    histogram_buckets,
)
from openai_kv.prometheus.registry import LabelledRegistry, describe
from openai_kv.prometheus.step_collector import StepCollector

CLOSED_SETS = {
    "vllm:request_success_total": ("stop", "length", "abort", "error"),
    "vllm:admission_rejections_total": ("max_num_queued_reqs", "max_num_queued_tokens"),
    "openai_kv_aborts_total": ("disconnect", "slow_reader", "deadline", "shutdown"),
}


class PrometheusExporter(MetricsExporter):
    """All series in a registry of its own; `scrape` renders them in text format 0.0.4."""

    name = "prometheus"

    def __init__(self) -> None:
        self._registry = LabelledRegistry()
        self._steps = StepCollector()
        self._registry.register(self._steps)
        self._histograms: dict[str, Histogram] = {}
        self._finished = self._counter("vllm:request_success_total", "finished_reason")
        self._rejected = self._counter("vllm:admission_rejections_total", "reason")
        self._requests = self._counter("openai_kv_http_requests_total", "method", "route", "status")
        self._passed_on = self._counter("openai_kv_upstream_requests_total", "upstream", "status")
        self._aborts = self._counter("openai_kv_aborts_total", "reason")
        self._plugin_errors = self._counter("openai_kv_plugin_errors_total", "plugin", "hook")
        self._seconds = self._histogram("openai_kv_http_request_seconds", LATENCY_BUCKETS, "route")
        self._upstream_seconds = self._histogram("openai_kv_upstream_seconds", LATENCY_BUCKETS, "upstream")
        self._lifetime = self._histogram("openai_kv_block_lifetime_seconds", REUSE_BUCKETS, "policy")
        self._idle = self._histogram("openai_kv_block_idle_before_evict_seconds", REUSE_BUCKETS, "policy")
        self._decision = self._histogram("openai_kv_eviction_seconds", DECISION_BUCKETS, "policy")
        self._tier_bytes = self._counter("openai_kv_tier_bytes_total", "tier", "direction")
        self._tier_seconds = self._histogram("openai_kv_tier_seconds", FIRST_TOKEN_BUCKETS, "tier", "direction")
        self._reuse_gap = self._histogram("openai_kv_block_reuse_gap_seconds", REUSE_BUCKETS)

    def start(self, info: ServerInfo) -> None:
        self._registry.labels = {"model_name": info.model_name, "engine": "0"}
        self._info(
            "vllm:cache_config_info",
            block_size=str(info.block_size),
            num_gpu_blocks=str(info.num_blocks),
            cache_dtype=info.cache_dtype,
            enable_prefix_caching="True",
        )
        self._info("openai_kv_build_info", backend=info.backend, **info.versions)
        for name, buckets in histogram_buckets(info.max_model_len).items():
            self._histograms[name] = self._histogram(name, buckets)

    def on_step(self, stats: StepStats) -> None:
        self._steps.update(stats)
        self._observe("vllm:iteration_tokens_total", stats.scheduled_tokens)
        self._observe("openai_kv_attention_read_bytes", stats.attention_read_bytes)
        self._observe("vllm:time_to_first_token_seconds", *stats.time_to_first_token_seconds)
        self._observe("vllm:inter_token_latency_seconds", *stats.inter_token_seconds)

    def on_lookup(self, stats: LookupStats) -> None:
        for gap in stats.reuse_gap_seconds:
            self._reuse_gap.observe(gap)

    def on_request_finished(self, stats: RequestStats) -> None:
        self._finished.labels(stats.finish_reason).inc()
        self._observe("vllm:request_prompt_tokens", stats.num_prompt_tokens)
        self._observe("vllm:request_generation_tokens", stats.num_output_tokens)
        self._observe("vllm:request_max_num_generation_tokens", stats.num_output_tokens)
        self._observe("vllm:request_params_max_tokens", stats.max_tokens)
        self._observe("vllm:request_prefill_kv_computed_tokens", stats.num_prompt_tokens - stats.num_cached_tokens)
        self._observe("vllm:request_params_n", 1)
        self._observe("vllm:request_num_preemptions", stats.num_preemptions)
        self._observe_times(stats)

    def _observe_times(self, stats: RequestStats) -> None:
        """As far as the request got."""
        queued, first, total = stats.queue_seconds, stats.first_token_seconds, stats.total_seconds
        self._observe("vllm:e2e_request_latency_seconds", total)
        if queued is not None:
            self._observe("vllm:request_queue_time_seconds", queued)
            self._observe("vllm:request_inference_time_seconds", total - queued)
        if queued is not None and first is not None:
            self._observe("vllm:request_prefill_time_seconds", first - queued)
            self._observe("vllm:request_decode_time_seconds", total - first)
        if first is not None and stats.num_output_tokens > 1:
            per_token = (total - first) / (stats.num_output_tokens - 1)
            self._observe("vllm:request_time_per_output_token_seconds", per_token)

    def on_eviction(self, stats: EvictionStats) -> None:
        self._lifetime.labels(stats.policy).observe(stats.lifetime_seconds)
        self._idle.labels(stats.policy).observe(stats.idle_seconds)
        self._decision.labels(stats.policy).observe(stats.seconds)

    def on_transfer(self, stats: TransferStats) -> None:
        self._tier_bytes.labels(stats.tier, stats.direction).inc(stats.num_bytes)
        self._tier_seconds.labels(stats.tier, stats.direction).observe(stats.seconds)

    def on_http_request(self, stats: HttpStats) -> None:
        self._requests.labels(stats.method, stats.route, str(stats.status)).inc()
        self._seconds.labels(stats.route).observe(stats.seconds)
        if stats.upstream is not None:
            self._passed_on.labels(stats.upstream, str(stats.status)).inc()
            self._upstream_seconds.labels(stats.upstream).observe(stats.seconds)

    def on_rejected(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def on_abort(self, reason: str) -> None:
        self._aborts.labels(reason).inc()

    def on_plugin_error(self, plugin: str, hook: str) -> None:
        self._plugin_errors.labels(plugin, hook).inc()

    def on_dropped(self, plugin: str, total: int) -> None:
        self._steps.dropped[plugin] = total

    def scrape(self) -> bytes:
        return generate_latest(self._registry)

    def _observe(self, name: str, *values: float) -> None:
        for value in values:
            self._histograms[name].observe(value)

    def _counter(self, name: str, *labels: str) -> Counter:
        """With a series for each value of a closed set, so that a rate has a beginning."""
        made = Counter(name, describe(name), labels, registry=self._registry)
        for value in CLOSED_SETS.get(name, ()):
            made.labels(value)
        return made

    def _histogram(self, name: str, buckets: Buckets, *labels: str) -> Histogram:
        return Histogram(name, describe(name), labels, buckets=buckets, registry=self._registry)

    def _info(self, name: str, **labels: str) -> None:
        Gauge(name, describe(name), list(labels), registry=self._registry).labels(**labels).set(1)


@hookimpl
def register_metrics_exporters(register: Callable[[type[MetricsExporter]], None]) -> None:
    register(PrometheusExporter)
