"""`guidellm`: a load of streams, and what its report says of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.programs import find, run
from tests.clients.service import Service

pytestmark = [pytest.mark.clients, pytest.mark.model]
REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 12, 64, 16


def options(**values: Any) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_load_of_four_streams(service: Service, tmp_path: Path, path: str) -> None:
    report = tmp_path / "report.json"
    before = service.generated_tokens()
    command = [
        *(find("guidellm"), "run", "--disable-console"),
        *("--backend", options(kind="openai_http", target=service.url, model=service.model, request_format=path)),
        *("--tokenizer", options(kind="huggingface_auto", model=service.folder)),
        *("--profile", options(kind="concurrent", streams=4)),
        *("--constraint", options(kind="max_requests", count=REQUESTS)),
        *("--data", options(kind="synthetic_text", prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)),
        *("--output", options(kind="json", path=report)),
    ]
    run(command)
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"], totals["incomplete"]) == (REQUESTS, 0, 0)
    for request in benchmark["requests"]["successful"]:
        assert request["output_metrics"]["text_tokens"] == OUTPUT_TOKENS
        assert request["input_metrics"]["text_tokens"] >= PROMPT_TOKENS - 1
    assert service.generated_tokens() - before == REQUESTS * OUTPUT_TOKENS
