"""A registry whose series have vLLM's labels."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric


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
