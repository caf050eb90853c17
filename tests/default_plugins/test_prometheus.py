"""The exporter's text, parsed by prometheus_client's own parser."""

from prometheus_client.parser import text_string_to_metric_families

from openai_kv.default_plugins.prometheus import PrometheusExporter, one_two_five
from openai_kv.metrics import CacheStats, EvictionStats, HttpStats, RequestStats, ServerInfo, StepStats
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
CONTRACT = """
vllm:num_requests_running vllm:num_requests_waiting vllm:num_requests_waiting_by_reason vllm:kv_cache_usage_perc
vllm:cache_config_info vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:prompt_tokens_total
vllm:prompt_tokens_cached_total vllm:generation_tokens_total vllm:num_preemptions_total
vllm:prompt_tokens_by_source_total vllm:prompt_tokens_cached_by_source_total vllm:request_success_total
vllm:admission_rejections_total vllm:time_to_first_token_seconds_bucket vllm:inter_token_latency_seconds_bucket
vllm:request_time_per_output_token_seconds_bucket vllm:e2e_request_latency_seconds_bucket
vllm:request_queue_time_seconds_bucket vllm:request_inference_time_seconds_bucket
vllm:request_prefill_time_seconds_bucket vllm:request_decode_time_seconds_bucket vllm:request_prompt_tokens_bucket
vllm:request_generation_tokens_bucket vllm:request_max_num_generation_tokens_bucket
vllm:request_params_max_tokens_bucket vllm:request_prefill_kv_computed_tokens_bucket
vllm:iteration_tokens_total_bucket vllm:request_params_n_bucket vllm:request_num_preemptions_bucket
openai_kv_evictions_total openai_kv_block_lifetime_seconds_bucket openai_kv_block_idle_before_evict_seconds_bucket
openai_kv_prefix_lookups_total openai_kv_tokens_saved_total openai_kv_blocks openai_kv_attention_read_bytes_bucket
openai_kv_http_requests_total openai_kv_http_request_seconds_bucket openai_kv_aborts_total
openai_kv_plugin_errors_total openai_kv_build_info
"""

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def started() -> PrometheusExporter:
    exporter = PrometheusExporter()
    exporter.start(INFO)
    return exporter


def series(exporter: PrometheusExporter) -> Series:
    families = text_string_to_metric_families(exporter.scrape().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(exporter: PrometheusExporter, name: str, **labels: str) -> float:
    shared = VLLM if name.startswith("vllm:") else {}
    return series(exporter)[name, frozenset({**shared, **labels}.items())]


def feed(exporter: PrometheusExporter) -> None:
    exporter.on_step(STEP)
    exporter.on_request_finished(REQUEST)
    exporter.on_eviction(EvictionStats("lru", 1, 16, 2, lifetime_seconds=3.0, idle_seconds=1.0))
    exporter.on_http_request(HttpStats("GET", "/ready", 200, 0.001))
    exporter.on_rejected("max_num_queued_reqs")
    exporter.on_abort("disconnect")
    exporter.on_plugin_error("bad", "on_step")


def test_series_of_the_contract_exist_and_no_created_ones() -> None:
    exporter = started()
    feed(exporter)
    names = {name for name, _ in series(exporter)}
    assert [name for name in CONTRACT.split() if name not in names] == []
    assert [name for name in names if name.endswith("_created")] == []


def test_every_vllm_series_carries_model_and_engine() -> None:
    exporter = started()
    feed(exporter)
    for name, labels in series(exporter):
        expected = {"model_name": "m"} if name == "vllm:admission_rejections_total" else VLLM
        if name.startswith("vllm:"):
            assert {key: text for key, text in labels if key in VLLM} == expected, name


def test_step_numbers_are_summed_and_cache_numbers_are_read() -> None:
    exporter = started()
    exporter.on_step(STEP)
    exporter.on_step(STEP)
    assert value(exporter, "vllm:generation_tokens_total") == 4
    assert value(exporter, "vllm:num_preemptions_total") == 2
    assert value(exporter, "vllm:prompt_tokens_by_source_total", source="local_compute") == 200 - 62
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


def test_two_exporters_share_nothing() -> None:
    first, second = started(), started()
    first.on_step(STEP)
    assert value(second, "vllm:generation_tokens_total") == 0


def test_token_buckets_end_at_the_model_length() -> None:
    assert one_two_five(100) == (1, 2, 5, 10, 20, 50, 100)
    assert one_two_five(8192)[-1] == 5000
