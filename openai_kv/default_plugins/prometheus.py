"""Prometheus metrics under vLLM's names, so that its dashboards work, and our own beside them."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from openai_kv.hookspecs import hookimpl
from openai_kv.metrics import (
    CacheStats,
    EvictionStats,
    HttpStats,
    LookupStats,
    MetricsExporter,
    RequestStats,
    ServerInfo,
    StepStats,
)

Buckets = tuple[float, ...]
Family = GaugeMetricFamily | CounterMetricFamily
CLOSED_SETS = {
    "vllm:request_success_total": ("stop", "length", "abort", "error"),
    "vllm:admission_rejections_total": ("max_num_queued_reqs", "max_num_queued_tokens"),
    "openai_kv_aborts_total": ("disconnect", "slow_reader", "deadline", "shutdown"),
}


def bounds(text: str) -> Buckets:
    return tuple(map(float, text.split()))


FIRST_TOKEN_BUCKETS = bounds(".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560")
TOKEN_BUCKETS = bounds(".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80")
LATENCY_BUCKETS = bounds(".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680")
REUSE_BUCKETS = bounds(".001 .002 .005 .01 .02 .05 .1 .2 .5 1 2 5 10 20 30 60 120 300 600 1200 1800 3600 21600 86400")
ITERATION_BUCKETS = bounds("1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384")
DECISION_BUCKETS = bounds("1e-6 1e-5 1e-4 .001 .005 .01 .05 .1 .5 1")
READ_BUCKETS = tuple(float(4**exponent) for exponent in range(5, 19))


def one_two_five(limit: int) -> Buckets:
    """1, 2, 5, 10, 20, ... up to `limit`, as vLLM's token histograms have them."""
    series = (digit * 10.0**power for power in range(len(str(limit))) for digit in (1, 2, 5))
    return tuple(value for value in series if value <= limit)


def histogram_buckets(max_model_len: int) -> Mapping[str, Buckets]:
    tokens = one_two_five(max_model_len)
    return {
        "vllm:time_to_first_token_seconds": FIRST_TOKEN_BUCKETS,
        "vllm:inter_token_latency_seconds": TOKEN_BUCKETS,
        "vllm:request_time_per_output_token_seconds": TOKEN_BUCKETS,
        "vllm:e2e_request_latency_seconds": LATENCY_BUCKETS,
        "vllm:request_queue_time_seconds": LATENCY_BUCKETS,
        "vllm:request_inference_time_seconds": LATENCY_BUCKETS,
        "vllm:request_prefill_time_seconds": LATENCY_BUCKETS,
        "vllm:request_decode_time_seconds": LATENCY_BUCKETS,
        "vllm:request_prompt_tokens": tokens,
        "vllm:request_generation_tokens": tokens,
        "vllm:request_max_num_generation_tokens": tokens,
        "vllm:request_params_max_tokens": tokens,
        "vllm:request_prefill_kv_computed_tokens": tokens,
        "vllm:iteration_tokens_total": ITERATION_BUCKETS,
        "vllm:request_params_n": (1, 2, 5, 10, 20),
        "vllm:request_num_preemptions": (1, 2, 3, 4, 5, 10, 20),
        "openai_kv_attention_read_bytes": READ_BUCKETS,
    }


def describe(name: str) -> str:
    return name.removeprefix("vllm:").removeprefix("openai_kv_").replace("_", " ")


class LabelledRegistry(CollectorRegistry):
    """Adds the labels that all `vllm:` series share when they are read, and leaves out `*_created` series."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: Mapping[str, str] = {}

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            shared = self.labels if metric.name.startswith("vllm:") else {}
            # The one series that vLLM keeps per server, not per engine.
            if metric.name == "vllm:admission_rejections":
                shared = {name: value for name, value in shared.items() if name != "engine"}
            metric.samples = [
                sample._replace(labels={**shared, **sample.labels})
                for sample in metric.samples
                if not sample.name.endswith("_created")
            ]
            yield metric


class StepCollector(Collector):
    """Series read off the steps' own numbers when somebody looks: a step pays for a few additions."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}
        self._latest: StepStats | None = None
        self._generated = self._preemptions = 0

    def update(self, stats: StepStats) -> None:
        self._latest = stats
        self._generated += stats.generated_tokens
        self._preemptions += stats.preemptions

    def collect(self) -> Iterator[Metric]:
        yield counter("vllm:generation_tokens", self._generated)
        yield counter("vllm:num_preemptions", self._preemptions)
        yield counter("openai_kv_exporter_dropped", self.dropped, "plugin")
        if self._latest is not None:
            yield from collect_queue(self._latest)
            yield from collect_cache(self._latest.cache)
            yield from collect_prompt(self._latest.cache)

    def describe(self) -> Iterator[Metric]:
        return iter(())


def gauge(name: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    return fill(GaugeMetricFamily(name, describe(name), labels=label.split()), values, "tier" in label)


def counter(name: str, values: float | Mapping[str, float], label: str = "") -> Metric:
    return fill(CounterMetricFamily(name, describe(name), labels=label.split()), values, "tier" in label)


def fill(family: Family, values: float | Mapping[str, float], tiered: bool) -> Family:
    """One sample, or one a label value; there is one tier."""
    items = values.items() if isinstance(values, Mapping) else [("", values)]
    for label, value in items:
        family.add_metric([part for part in (label, "device" if tiered else "") if part], value)
    return family


def collect_queue(stats: StepStats) -> Iterator[Metric]:
    yield gauge("vllm:num_requests_running", stats.running)
    yield gauge("vllm:num_requests_waiting", stats.waiting)
    reasons = {"capacity": stats.waiting - stats.deferred, "deferred": stats.deferred}
    yield gauge("vllm:num_requests_waiting_by_reason", reasons, "reason")


def collect_cache(cache: CacheStats) -> Iterator[Metric]:
    yield gauge("vllm:kv_cache_usage_perc", cache.referenced / cache.total)
    yield gauge("openai_kv_memory_pressure", cache.memory_pressure)
    yield counter("vllm:prefix_cache_queries", cache.prompt_tokens)
    yield counter("vllm:prefix_cache_hits", sum(cache.hit_tokens.values()))
    yield counter("openai_kv_prefix_lookups", {**cache.hits, "miss": cache.miss_count}, "kind")
    yield counter("openai_kv_tokens_saved", cache.hit_tokens, "kind")
    yield counter("openai_kv_evictions", cache.evictions_by_policy, "policy tier")
    yield counter("openai_kv_expired_blocks", cache.expired_blocks)
    states = {"free": cache.free, "cached": cache.cached, "referenced": cache.referenced}
    yield gauge("openai_kv_blocks", {**states, "soft_pinned": cache.soft_pinned, "pinned": cache.pinned}, "state tier")


def collect_prompt(cache: CacheStats) -> Iterator[Metric]:
    """Of each prompt once, at its admission: what a preemption makes run again is not counted again."""
    cached = sum(cache.hit_tokens.values())
    yield counter("vllm:prompt_tokens", cache.prompt_tokens)
    yield counter("vllm:prompt_tokens_cached", cached)
    sources = {"local_compute": cache.prompt_tokens - cached, "local_cache_hit": cached, "external_kv_transfer": 0}
    yield counter("vllm:prompt_tokens_by_source", sources, "source")
    yield counter("vllm:prompt_tokens_cached_by_source", {"device": cached, "host": 0, "disk": 0}, "source")


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
