"""The gen_ai.server.* histograms."""

from opentelemetry.metrics import Histogram, MeterProvider

from openai_kv.metrics import GenerationStats, HttpStats
from openai_kv.otel.attributes import given, who

SCOPE = "openai_kv"
BUCKETS = {
    "gen_ai.server.request.duration": ".01 .02 .04 .08 .16 .32 .64 1.28 2.56 5.12 10.24 20.48 40.96 81.92",
    "gen_ai.server.time_to_first_token": ".001 .005 .01 .02 .04 .06 .08 .1 .25 .5 .75 1 2.5 5 7.5 10",
    "gen_ai.server.time_per_output_token": ".01 .025 .05 .075 .1 .15 .2 .3 .4 .5 .75 1 2.5",
}


class Histograms:
    """Seconds. Only the whole request's has failures, with their `error.type`."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter(SCOPE)

        def make(name: str) -> Histogram:
            bounds = [float(bound) for bound in BUCKETS[name].split()]
            return meter.create_histogram(name, "s", explicit_bucket_boundaries_advisory=bounds)

        self._duration, self._first_token, self._per_token = map(make, BUCKETS)

    def record(self, stats: GenerationStats, http: HttpStats, model: str) -> None:
        attributes = who(stats, http, model)
        self._duration.record(stats.total_seconds, {**attributes, **given({"error.type": stats.error_code})})
        if stats.error_code is not None or stats.first_token_seconds is None:
            return
        self._first_token.record(stats.first_token_seconds, attributes)
        if stats.longest_output_tokens > 1:
            decoding = stats.total_seconds - stats.first_token_seconds
            self._per_token.record(decoding / (stats.longest_output_tokens - 1), attributes)
