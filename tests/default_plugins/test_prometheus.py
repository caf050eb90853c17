"""The exporter's text, parsed by prometheus_client's own parser."""

from dataclasses import dataclass
from math import inf

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from openai_kv.default_plugins.prometheus import PrometheusExporter
from openai_kv.metrics import (
    CacheStats,
    EvictionStats,
    HttpStats,
    LookupStats,
    RequestStats,
    ServerInfo,
    StepStats,
    TierStats,
    TransferStats,
)
from openai_kv.prometheus.buckets import one_two_five
from openai_kv.request import RequestInfo

CACHE = CacheStats(
    total=10,
    free=2,
    cached=3,
    referenced=5,
    block_size=16,
    referenced_slots_used=70,
    tree_nodes=4,
    exact_entries=1,
    namespaces=1,
    hits={"exact": 1, "radix": 2, "partial": 0},
    hit_tokens={"exact": 30, "radix": 32, "partial": 0},
    miss_count=3,
    prompt_tokens=200,
    evictions_by_policy={"lru": 4},
    duplicate_blocks=0,
    soft_pinned=6,
    pinned=7,
    pins=1,
    promoted_tokens={"disk": 16},
    tiers=(TierStats("disk", "disk", 3, 4096, 2**20, 2, 1, {"full": 2}, available=True),),
)
STEP = StepStats(
    step=1,
    step_seconds=0.03,
    running=2,
    waiting=3,
    deferred=1,
    scheduled_tokens=40,
    computed_prompt_tokens=38,
    generated_tokens=2,
    preemptions=1,
    attention_read_bytes=5000,
    inter_token_seconds=(0.03, 0.04),
    time_to_first_token_seconds=(0.2,),
    cache=CACHE,
    drafts=2,
    draft_tokens=7,
    accepted_draft_tokens=3,
)
REQUEST = RequestStats(
    info=RequestInfo("r", 38),
    finish_reason="stop",
    hit_kind="radix",
    num_prompt_tokens=38,
    num_output_tokens=5,
    num_cached_tokens=16,
    cache_write_tokens=22,
    max_tokens=64,
    num_preemptions=0,
    queue_seconds=0.5,
    first_token_seconds=1.5,
    total_seconds=3.5,
)
INFO = ServerInfo(
    model_name="m",
    max_model_len=8192,
    block_size=16,
    num_blocks=10,
    cache_dtype="bfloat16",
    backend="sdpa",
    policy="lru",
    versions={"version": "1", "python": "3", "torch": "2", "transformers": "5"},
)
VLLM = {"model_name": "m", "engine": "0"}
T = ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
G = ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5 5 7.5 10 20 40 80"
L = ".3 .5 .8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
R = ".001 .002 .005 .01 .02 .05 .1 .2 .5 1 2 5 10 20 30 60 120 300 600 1200 1800 3600 21600 86400"
N = "1 2 5 10 20 50 100 200 500 1000 2000 5000"
# The contract's table: name, type, own labels, buckets.
CONTRACT = f"""
vllm:num_requests_running | gauge
vllm:num_requests_waiting | gauge
vllm:num_requests_waiting_by_reason | gauge | reason=capacity,deferred
vllm:kv_cache_usage_perc | gauge
vllm:cache_config_info | gauge | block_size num_gpu_blocks cache_dtype enable_prefix_caching
vllm:prefix_cache_queries_total | counter
vllm:prefix_cache_hits_total | counter
vllm:prompt_tokens_total | counter
openai_kv_expired_blocks_total | counter
vllm:prompt_tokens_cached_total | counter
vllm:generation_tokens_total | counter
vllm:num_preemptions_total | counter
vllm:spec_decode_num_drafts_total | counter
vllm:spec_decode_num_draft_tokens_total | counter
vllm:spec_decode_num_accepted_tokens_total | counter
vllm:prompt_tokens_by_source_total | counter | source=local_compute,local_cache_hit,external_kv_transfer
vllm:prompt_tokens_cached_by_source_total | counter | source=device,host,disk
vllm:request_success_total | counter | finished_reason=stop,length,abort,error
vllm:admission_rejections_total | counter | reason=max_num_queued_reqs,max_num_queued_tokens
vllm:time_to_first_token_seconds | histogram | | {T}
vllm:inter_token_latency_seconds | histogram | | {G}
vllm:request_time_per_output_token_seconds | histogram | | {G}
vllm:e2e_request_latency_seconds | histogram | | {L}
vllm:request_queue_time_seconds | histogram | | {L}
vllm:request_inference_time_seconds | histogram | | {L}
vllm:request_prefill_time_seconds | histogram | | {L}
vllm:request_decode_time_seconds | histogram | | {L}
vllm:request_prompt_tokens | histogram | | {N}
vllm:request_generation_tokens | histogram | | {N}
vllm:request_max_num_generation_tokens | histogram | | {N}
vllm:request_params_max_tokens | histogram | | {N}
vllm:request_prefill_kv_computed_tokens | histogram | | {N}
vllm:iteration_tokens_total | histogram | | 1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384
vllm:request_params_n | histogram | | 1 2 5 10 20
vllm:request_num_preemptions | histogram | | 1 2 3 4 5 10 20
openai_kv_evictions_total | counter | policy tier=device
openai_kv_eviction_seconds | histogram | policy | 1e-6 1e-5 1e-4 .001 .005 .01 .05 .1 .5 1
openai_kv_block_lifetime_seconds | histogram | policy | {R}
openai_kv_block_idle_before_evict_seconds | histogram | policy | {R}
openai_kv_block_reuse_gap_seconds | histogram | | {R}
openai_kv_prefix_lookups_total | counter | kind=exact,radix,partial,miss
openai_kv_tokens_saved_total | counter | kind=exact,radix,partial
openai_kv_blocks | gauge | state=free,cached,referenced,soft_pinned,pinned tier=device
openai_kv_memory_pressure | gauge
openai_kv_tier_bytes_total | counter | tier=disk direction=demote
openai_kv_tier_seconds | histogram | tier=disk direction=demote | {T}
openai_kv_tier_used_bytes | gauge | tier=disk
openai_kv_tier_problems_total | counter | tier=disk problem=full,error,corrupt,dropped
openai_kv_attention_read_bytes | histogram | | {" ".join(str(4**power) for power in range(5, 19))}
openai_kv_http_requests_total | counter | method route status
openai_kv_http_request_seconds | histogram | route | {L}
openai_kv_aborts_total | counter | reason=disconnect,slow_reader,deadline,shutdown
openai_kv_upstream_requests_total | counter | upstream status
openai_kv_upstream_seconds | histogram | upstream | {L}
openai_kv_plugin_errors_total | counter | plugin hook
openai_kv_exporter_dropped_total | counter | plugin
openai_kv_build_info | gauge | version python torch transformers backend
"""


@dataclass(frozen=True)
class Row:
    """One line of the table; a label with an empty set of values may have any."""

    name: str
    type: str
    labels: dict[str, set[str]]
    buckets: tuple[float, ...]

    @classmethod
    def parse(cls, line: str) -> "Row":
        name, kind, labels, buckets = (part.strip() for part in (line + "| | ").split("|")[:4])
        sets = dict(label.partition("=")[::2] for label in labels.split())
        values = {label: set(filter(None, text.split(","))) for label, text in sets.items()}
        return cls(name, kind, values, tuple(map(float, buckets.split())))

    @property
    def family(self) -> str:
        return self.name.removesuffix("_total") if self.type == "counter" else self.name

    @property
    def shared(self) -> dict[str, str]:
        if self.name == "vllm:admission_rejections_total":
            return {"model_name": "m"}
        return VLLM if self.name.startswith("vllm:") else {}


Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def started() -> PrometheusExporter:
    exporter = PrometheusExporter()
    exporter.start(INFO)
    return exporter


def series(exporter: PrometheusExporter) -> Series:
    samples = [sample for family in families(exporter).values() for sample in family.samples]
    return {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}


def value(exporter: PrometheusExporter, name: str, **labels: str) -> float:
    shared = VLLM if name.startswith("vllm:") else {}
    return series(exporter)[name, frozenset({**shared, **labels}.items())]


def feed(exporter: PrometheusExporter) -> None:
    exporter.on_step(STEP)
    exporter.on_request_finished(REQUEST)
    exporter.on_lookup(LookupStats(REQUEST.info, "radix", 32, (0.5, 0.25), resumed=False))
    exporter.on_eviction(EvictionStats("lru", 1, 16, 2, lifetime_seconds=3.0, idle_seconds=1.0, seconds=2e-5))
    exporter.on_transfer(TransferStats("disk", "demote", 2, 2048, 0.25))
    exporter.on_http_request(HttpStats("GET", "/ready", 200, 0.001))
    exporter.on_http_request(HttpStats("POST", "/v1/completions", 429, 0.5, upstream="gpt-*"))
    exporter.on_rejected("max_num_queued_reqs")
    exporter.on_abort("disconnect")
    exporter.on_plugin_error("bad", "on_step")
    exporter.on_dropped("slow", 0)


def families(exporter: PrometheusExporter) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(exporter.scrape().decode())}


def test_what_is_exposed_is_the_contracts_table() -> None:
    exporter = started()
    feed(exporter)
    table = [Row.parse(line) for line in CONTRACT.strip().splitlines()]
    found = families(exporter)
    assert sorted(found) == sorted(row.family for row in table)
    for row in table:
        check(row, found[row.family])


def check(row: Row, family: Metric) -> None:
    assert family.type == row.type, row.name
    samples = [{**sample.labels} for sample in family.samples]
    bounds = {float(labels.pop("le")) for labels in samples if "le" in labels}
    assert bounds == ({*row.buckets, inf} if row.type == "histogram" else set()), row.name
    for labels in samples:
        assert labels.keys() == {*row.shared, *row.labels}, row.name
        assert {key: labels[key] for key in row.shared} == row.shared
    for label, values in row.labels.items():
        assert not values or {labels[label] for labels in samples} == values, row.name


def test_eviction_reuse_and_drops() -> None:
    exporter = started()
    feed(exporter)
    exporter.on_dropped("slow", 7)
    assert value(exporter, "openai_kv_exporter_dropped_total", plugin="slow") == 7
    assert value(exporter, "openai_kv_block_reuse_gap_seconds_sum") == 0.75
    assert value(exporter, "openai_kv_eviction_seconds_sum", policy="lru") == 2e-5


def test_step_numbers_are_summed_and_cache_numbers_are_read() -> None:
    exporter = started()
    exporter.on_step(STEP)
    exporter.on_step(STEP)
    assert value(exporter, "vllm:generation_tokens_total") == 4
    assert value(exporter, "vllm:num_preemptions_total") == 2
    drafted = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [value(exporter, f"vllm:spec_decode_{name}_total") for name in drafted] == [4, 14, 6]
    assert value(exporter, "vllm:prompt_tokens_by_source_total", source="local_compute") == 200 - 62
    assert value(exporter, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") == 16
    assert value(exporter, "vllm:prompt_tokens_cached_by_source_total", source="device") == 62 - 16
    assert value(exporter, "vllm:prompt_tokens_cached_by_source_total", source="disk") == 16
    assert value(exporter, "openai_kv_tier_problems_total", tier="disk", problem="full") == 2
    assert value(exporter, "openai_kv_tier_used_bytes", tier="disk") == 4096
    assert value(exporter, "vllm:prompt_tokens_total") == 200
    assert value(exporter, "vllm:prefix_cache_queries_total") == 200
    assert value(exporter, "vllm:kv_cache_usage_perc") == 0.5
    assert value(exporter, "vllm:num_requests_waiting_by_reason", reason="capacity") == 2
    assert value(exporter, "openai_kv_prefix_lookups_total", kind="partial") == 0
    assert value(exporter, "openai_kv_blocks", state="free", tier="device") == 2
    assert value(exporter, "openai_kv_blocks", state="soft_pinned", tier="device") == 6
    assert value(exporter, "openai_kv_blocks", state="pinned", tier="device") == 7
    assert value(exporter, "openai_kv_evictions_total", policy="lru", tier="device") == 4
    assert value(exporter, "vllm:inter_token_latency_seconds_count") == 4
    assert value(exporter, "openai_kv_attention_read_bytes_sum") == 10000


def test_a_request_is_split_into_its_phases() -> None:
    exporter = started()
    exporter.on_request_finished(REQUEST)
    sums = {name: value(exporter, f"vllm:request_{name}_time_seconds_sum") for name in ("queue", "prefill", "decode")}
    assert sums == {"queue": 0.5, "prefill": 1.0, "decode": 2.0}
    assert value(exporter, "vllm:request_inference_time_seconds_sum") == 3.0
    assert value(exporter, "vllm:request_time_per_output_token_seconds_sum") == 0.5
    assert value(exporter, "vllm:request_prefill_kv_computed_tokens_sum") == 22
    assert value(exporter, "vllm:request_success_total", finished_reason="stop") == 1


def test_http_is_counted_while_the_model_loads() -> None:
    exporter = PrometheusExporter()
    exporter.on_http_request(HttpStats("GET", "/ready", 503, 0.001))
    assert value(exporter, "openai_kv_http_requests_total", method="GET", route="/ready", status="503") == 1


def test_what_was_passed_on_is_counted_by_upstream() -> None:
    exporter = started()
    feed(exporter)
    assert value(exporter, "openai_kv_upstream_requests_total", upstream="gpt-*", status="429") == 1
    assert value(exporter, "openai_kv_upstream_seconds_sum", upstream="gpt-*") == 0.5


def test_two_exporters_share_nothing() -> None:
    first, second = started(), started()
    first.on_step(STEP)
    assert value(second, "vllm:generation_tokens_total") == 0


def test_token_buckets_end_at_the_model_length() -> None:
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)
    assert one_two_five(8192)[-1] == 5000
