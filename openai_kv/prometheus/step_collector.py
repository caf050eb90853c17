"""Series that are read off the latest step when somebody looks."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from openai_kv.metrics import CacheStats, StepStats
from openai_kv.prometheus.registry import describe

Family = GaugeMetricFamily | CounterMetricFamily


class StepCollector(Collector):
    """Series read off the steps' own numbers when somebody looks: a step pays for a few additions."""

    def __init__(self) -> None:
        self.dropped: dict[str, int] = {}
        self._latest: StepStats | None = None
        self._generated = self._preemptions = 0
        self._drafts = self._draft_tokens = self._accepted = 0

    def update(self, stats: StepStats) -> None:
        self._latest = stats
        self._generated += stats.generated_tokens
        self._preemptions += stats.preemptions
        self._drafts += stats.drafts
        self._draft_tokens += stats.draft_tokens
        self._accepted += stats.accepted_draft_tokens

    def collect(self) -> Iterator[Metric]:
        yield counter("vllm:generation_tokens", self._generated)
        yield counter("vllm:num_preemptions", self._preemptions)
        yield counter("vllm:spec_decode_num_drafts", self._drafts)
        yield counter("vllm:spec_decode_num_draft_tokens", self._draft_tokens)
        yield counter("vllm:spec_decode_num_accepted_tokens", self._accepted)
        yield counter("openai_kv_exporter_dropped", self.dropped, "plugin")
        if self._latest is not None:
            yield from collect_queue(self._latest)
            yield from collect_cache(self._latest.cache)
            yield from collect_prompt(self._latest.cache)
            yield from collect_tiers(self._latest.cache)

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
    promoted = sum(cache.promoted_tokens.values())
    here = cached - promoted
    sources = {"local_compute": cache.prompt_tokens - cached, "local_cache_hit": here, "external_kv_transfer": promoted}
    yield counter("vllm:prompt_tokens_by_source", sources, "source")
    tiers = {"device": here, "host": 0, "disk": 0, **cache.promoted_tokens}
    yield counter("vllm:prompt_tokens_cached_by_source", tiers, "source")


def collect_tiers(cache: CacheStats) -> Iterator[Metric]:
    name = "openai_kv_tier_problems"
    problems = CounterMetricFamily(name, describe(name), labels=["tier", "problem"])
    used = GaugeMetricFamily("openai_kv_tier_used_bytes", describe("tier_used_bytes"), labels=["tier"])
    for tier in cache.tiers:
        for problem in ("full", "error", "corrupt", "dropped"):
            problems.add_metric([tier.name, problem], tier.problems.get(problem, 0))
        if tier.num_bytes is not None:
            used.add_metric([tier.name], tier.num_bytes)
    yield problems
    yield used
