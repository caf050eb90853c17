"""The server itself, killed in the middle of its work, finds its blocks again and answers as before."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from benchmarks.serving import Server, post, serve
from openai_kv.config_sources import environment
from tests.tiny_models import build, tiny_config
from tests.tiny_tokenizer import tiny_tokenizer

PROMPTS = [[3 + step * (number + 1) % 200 for number in range(90)] for step in (7, 11, 13)]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, _ in environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_KV_PLUGINS__DISK__PATH", str(tmp_path / "blocks"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = tiny_config("llama")
    config.vocab_size = 300
    build(config).save_pretrained(tmp_path / "model")
    tiny_tokenizer()._hf.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def ask(server: Server, prompt: list[int], max_tokens: int = 8) -> dict[str, object]:
    body = {"prompt_token_ids": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return post(server, "/generate", body)


def keep_asking(server: Server, prompt: list[int]) -> None:
    with suppress(httpx.HTTPError):
        while True:
            ask(server, prompt, 40)


def test_killed_in_mid_work(model: Path) -> None:
    options = ("--model", str(model), "--tiers", "disk", "--attention-backend", "sdpa", "--no-optimize")
    with serve(*options) as server:
        first = [ask(server, prompt) for prompt in PROMPTS]
        assert [answer["cache_hit_tokens"] for answer in first] == [0, 0, 0]
        with ThreadPoolExecutor() as pool:
            for step in (17, 19, 23):
                pool.submit(keep_asking, server, [3 + (number * step) % 200 for number in range(200)])
            ask(server, [9] * 50)
            os.kill(server.pid, signal.SIGKILL)
    with serve(*options) as server:
        again = [ask(server, prompt) for prompt in PROMPTS]
        assert [answer["token_ids"] for answer in again] == [answer["token_ids"] for answer in first]
        stats = httpx.get(f"{server.url}/cache/stats").json()
        assert stats["promoted_tokens"]["disk"] > 0, "how many depends on what was faster"
        assert stats["tiers"][0]["problems"] == {}
