"""Bounds of histograms: vLLM's for its series."""

from collections.abc import Mapping

Buckets = tuple[float, ...]


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
