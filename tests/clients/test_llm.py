"""Datasette's `llm`: the command line, with our server among its extra models."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.programs import find, run
from tests.clients.service import FRANCE, Service

pytestmark = [pytest.mark.clients, pytest.mark.model]
GREEDY = ("-o", "temperature", "0")


class Llm:
    """The program, with a user's folder of its own."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.program, self.folder = find("llm"), folder
        known = {"model_name": service.model, "api_base": service.base_url}
        models = [
            {"model_id": "ours", **known, "supports_schema": True},
            {"model_id": "plain", **known, "completion": True},
        ]
        # JSON is YAML too.
        (folder / "extra-openai-models.yaml").write_text(json.dumps(models))

    def __call__(self, *arguments: str) -> str:
        return run([self.program, *arguments], LLM_USER_PATH=str(self.folder)).strip()

    def last(self) -> dict[str, Any]:
        """What it has in its own log of the latest answer."""
        entry: dict[str, Any] = json.loads(self("logs", "--json", "-n", "1"))[0]
        return entry


def cached_tokens(entry: dict[str, Any]) -> int:
    """It leaves out details that are 0."""
    details = json.loads(entry["token_details"] or "{}").get("prompt_tokens_details", {})
    count: int = details.get("cached_tokens", 0)
    return count


@pytest.fixture
def llm(service: Service, tmp_path: Path) -> Llm:
    return Llm(service, tmp_path)


def test_models(llm: Llm) -> None:
    assert "OpenAI Chat: ours" in llm("models")


def test_streamed_and_whole(llm: Llm, service: Service) -> None:
    streamed = llm("-m", "ours", FRANCE, *GREEDY)
    first = llm.last()
    whole = llm("-m", "ours", FRANCE, *GREEDY, "--no-stream")
    second = llm.last()
    assert streamed == whole == service.answer()
    assert first["input_tokens"] == second["input_tokens"] > 30
    assert first["output_tokens"] == second["output_tokens"] == 8
    assert (cached_tokens(first), cached_tokens(second)) == (0, second["input_tokens"])


def test_a_second_turn_with_a_system_prompt(llm: Llm, service: Service) -> None:
    llm("-m", "ours", FRANCE, *GREEDY, "--system", "You answer in one sentence.")
    first = llm.last()
    second = llm("--continue", "And of Italy?", *GREEDY)
    messages = [
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": FRANCE},
        {"role": "assistant", "content": first["response"]},
        {"role": "user", "content": "And of Italy?"},
    ]
    assert second == service.chat(*messages).strip()
    assert cached_tokens(llm.last()) >= first["input_tokens"] + first["output_tokens"] - 1


def test_a_schema(llm: Llm) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "age": {"type": "integer", "minimum": 0, "maximum": 9999}},
        "required": ["city", "age"],
        "additionalProperties": False,
    }
    answer = json.loads(llm("-m", "ours", FRANCE, *GREEDY, "--schema", json.dumps(schema)))
    assert answer.keys() == {"city", "age"}
    assert answer["city"] in ("Paris", "Rome")


def test_text_completion(llm: Llm, service: Service) -> None:
    answer = llm("-m", "plain", "The capital of France is", *GREEDY, "-o", "max_tokens", "5")
    body = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0}
    assert answer == service.post("/v1/completions", model=service.model, **body)["choices"][0]["text"].strip()
