"""Our server with the default model, as the clients' tests see it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

FRANCE = "What is the capital of France?"


@dataclass(frozen=True, slots=True)
class Service:
    """`url` without a path; `folder` holds the model's files, for clients with a tokenizer of their own."""

    url: str
    folder: Path
    model: str = "smollm2-135m-instruct"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        response = httpx.post(f"{self.url}{path}", json=body, timeout=120)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def chat(self, *messages: dict[str, Any], **params: Any) -> str:
        """The greedy answer, asked for without any client; reads nothing from the cache and writes nothing to it."""
        body = {"model": self.model, "messages": messages, "temperature": 0, **params}
        answer = self.post("/v1/chat/completions", **body, prompt_cache_options={"mode": "explicit"})
        text: str = answer["choices"][0]["message"]["content"]
        return text

    def answer(self, question: str = FRANCE, **params: Any) -> str:
        return self.chat({"role": "user", "content": question}, **params)

    def stats(self) -> dict[str, Any]:
        answer: dict[str, Any] = httpx.get(f"{self.url}/cache/stats").json()
        return answer

    def generated_tokens(self) -> int:
        """Since the server's start."""
        metrics = httpx.get(f"{self.url}/metrics").text.splitlines()
        (line,) = (line for line in metrics if line.startswith("vllm:generation_tokens_total{"))
        return int(float(line.rpartition(" ")[2]))
