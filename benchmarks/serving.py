"""For benchmarks: the server as a user starts it, and requests to it over HTTP on loopback."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TEXT = "time year people way day man thing woman life child world school state family student group country problem"
WORDS = TEXT.split()
TIMEOUT = httpx.Timeout(600)


@dataclass(frozen=True)
class Server:
    url: str
    pid: int
    seconds_to_ready: float

    @property
    def rss_mib(self) -> float:
        return status_kib(self.pid, "VmRSS") / 1024

    @property
    def peak_rss_mib(self) -> float:
        return status_kib(self.pid, "VmHWM") / 1024


def status_kib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def serve(*options: str, port: int = 0) -> Iterator[Server]:
    """`openai-kv serve` with these options, up to /ready; ended by SIGTERM. `port` 0: a free one."""
    port = port or free_port()
    command = [sys.executable, "-m", "openai_kv.cli", "serve", "--port", str(port), *options]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, process.poll)
        yield Server(url, process.pid, time.perf_counter() - started)
    finally:
        print(f"    exit code {end(process)} of: openai-kv serve {' '.join(options)}".rstrip())


def end(process: subprocess.Popen[bytes], seconds: float = 60) -> int:
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        raise


def wait_ready(url: str, exit_code: Callable[[], int | None], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert exit_code() is None, "the server ended"
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready").status_code == 200:
                return
        time.sleep(0.02)
    raise TimeoutError("the server was not ready in time")


def words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def chat_body(system: str, user: str, **params: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "smollm2-135m-instruct", "messages": messages, "temperature": 0, "max_tokens": 16, **params}


def post(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(f"{server.url}{path}", json=body, timeout=TIMEOUT)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


@dataclass(frozen=True)
class Stream:
    text: str
    ttft: float
    usage: dict[str, Any]


async def stream_chat(client: httpx.AsyncClient, body: dict[str, Any], leave_after: int | None = None) -> Stream:
    """One streamed chat; with `leave_after` the client hangs up after so many chunks."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    started, ttft, text = time.perf_counter(), 0.0, ""
    usage: dict[str, Any] = {}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        chunks = 0
        async for data in events(response):
            usage = data["usage"] or usage
            piece = data["choices"][0]["delta"].get("content", "") if data["choices"] else ""
            if not chunks:
                ttft = time.perf_counter() - started
            text += piece
            chunks += 1
            if leave_after is not None and chunks >= leave_after:
                break
    return Stream(text, ttft, usage)


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def cached_tokens(stream: Stream) -> int:
    cached: int = stream.usage["prompt_tokens_details"]["cached_tokens"]
    return cached
