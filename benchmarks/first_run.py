"""The figures of docs/first-run.md: starts the installed server and measures it over HTTP on loopback.

python benchmarks/first_run.py            all of it, about 15 minutes on two cores
python benchmarks/first_run.py start chat  only these
"""

import argparse
import asyncio
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
        return _status_kib(self.pid, "VmRSS") / 1024

    @property
    def peak_rss_mib(self) -> float:
        return _status_kib(self.pid, "VmHWM") / 1024


def _status_kib(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def serve(*options: str) -> Iterator[Server]:
    """`openai-kv serve` with these options, up to /ready; ended by SIGTERM."""
    port = _free_port()
    command = [sys.executable, "-m", "openai_kv.cli", "serve", "--port", str(port), *options]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url, process)
        yield Server(url, process.pid, time.perf_counter() - started)
    finally:
        process.send_signal(signal.SIGTERM)
        print(f"    exit code {process.wait(60)} of: openai-kv serve {' '.join(options)}".rstrip())


def _wait_ready(url: str, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
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
        async for data in _events(response):
            usage = data["usage"] or usage
            piece = data["choices"][0]["delta"].get("content", "") if data["choices"] else ""
            if not chunks:
                ttft = time.perf_counter() - started
            text += piece
            chunks += 1
            if leave_after is not None and chunks >= leave_after:
                break
    return Stream(text, ttft, usage)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def row(what: str, value: object) -> None:
    print(f"| {what} | {value} |", flush=True)


# -- what is measured --------------------------------------------------------------------------------------------


def measure_start() -> None:
    for number in (1, 2):
        with serve() as server:
            row(f"start {number} to /ready, s", f"{server.seconds_to_ready:.1f}")
            row("RSS after start, MiB", f"{server.rss_mib:.0f}")


def measure_chat() -> None:
    with serve() as server:
        body = {"model": "smollm2-135m-instruct", "temperature": 0, "max_tokens": 16}
        answer = post(server, "/v1/chat/completions",
                      body | {"messages": [{"role": "user", "content": "What is the capital of France?"}]})  # fmt: skip
        row("the capital of France, greedy", answer["choices"][0]["message"]["content"])
        asyncio.run(_repeat(server))
        row("RSS with a 1 GiB pool, after that, MiB", f"{server.rss_mib:.0f}")


async def _repeat(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        await stream_chat(client, chat_body("Warm up.", "Say hello."))
        for seed in range(3):
            body = chat_body(words(1400, seed), "What was that about?", max_tokens=4, ignore_eos=True)
            cold, warm = await stream_chat(client, body), await stream_chat(client, body)
            row("1,400 words, twice: prompt / cached tokens", f"{warm.usage['prompt_tokens']} / {_cached(warm)}")
            row("TTFT cold ms / exact ms / ratio",
                f"{cold.ttft * 1e3:.0f} / {warm.ttft * 1e3:.1f} / {warm.ttft / cold.ttft:.3f}")  # fmt: skip


def _cached(stream: Stream) -> int:
    cached: int = stream.usage["prompt_tokens_details"]["cached_tokens"]
    return cached


def measure_partial() -> None:
    with serve("--block-size", "64") as server:
        shared = list(range(1000, 1047))
        for tail in ([2000, 2001, 2002], [2003, 2004]):
            answer = post(server, "/generate", {"prompt_token_ids": shared + tail, "max_tokens": 4, "temperature": 0})
        row("47 shared tokens, block size 64: cached tokens", answer["cache_hit_tokens"])


def measure_herd() -> None:
    with serve() as server:
        asyncio.run(_herd(server))


async def _herd(server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        system = words(1400, 99)
        bodies = [
            chat_body(system, f"Question {number}: {words(20, number)}", max_tokens=32, ignore_eos=True)
            for number in range(16)
        ]
        started = time.perf_counter()
        streams = await asyncio.gather(*(stream_chat(client, body) for body in bodies))
        seconds = time.perf_counter() - started
    prompts = [stream.usage["prompt_tokens"] for stream in streams]
    ttfts = sorted(stream.ttft for stream in streams)
    row("herd of 16: prompt tokens asked / computed", f"{sum(prompts)} / {sum(prompts) - sum(map(_cached, streams))}")
    row("herd of 16: TTFT p50 s, tokens/s", f"{ttfts[8]:.2f}, {16 * 32 / seconds:.0f}")


def measure_churn(num_requests: int = 2000) -> None:
    """Mixed lengths, 10 % hang-ups, a pool of a tenth of the working set; float32, so that texts must be equal."""
    with serve("--dtype", "float32", "--num-blocks", str(_pool_blocks(num_requests))) as server:
        bodies = [_churn_body(number) for number in range(num_requests)]
        kept = asyncio.run(_churn(server, bodies))
        stats = httpx.get(f"{server.url}/cache/stats").json()
        row("churn: requests, of these answered in full", f"{num_requests}, {len(kept)}")
        row("churn: pool blocks, evictions, preemptions",
            f"{stats['blocks']['total']}, {stats['eviction_count']}, {stats['preemption_count']}")  # fmt: skip
        row("churn: token hit rate", f"{stats['token_hit_rate']:.3f}")
        row("churn: referenced blocks at the end", stats["blocks"]["referenced"])
        row("churn: answers with status 500", _errors(server))
        time.sleep(3)  # after a second without work the engine checks every count, and ends if one is wrong
        row("churn: /health after the integrity check", httpx.get(f"{server.url}/health").status_code)
    sample = random.Random(1).sample(sorted(kept), 50)
    with serve("--dtype", "float32") as server:
        differing = [number for number in sample if _alone(server, bodies[number]) != kept[number]]
        row("churn: of 50 texts, different from those of an empty pool", len(differing))


def _errors(server: Server) -> float:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    requests = [line for line in lines if line.startswith("openai_kv_http_requests_total")]
    return sum(float(line.rpartition(" ")[2]) for line in requests if 'status="5' in line and "/ready" not in line)


def _churn_body(number: int) -> dict[str, Any]:
    rng = random.Random(number)
    system = words(rng.choice([10, 40, 120, 300]), rng.randrange(300))
    return chat_body(system, words(rng.randrange(3, 30), number), max_tokens=rng.choice([1, 4, 8, 16]))


def _pool_blocks(num_requests: int) -> int:
    """A tenth of the distinct tokens, roughly one token a word and 25 for the template, in blocks of 16."""
    systems = {body["messages"][0]["content"] for body in map(_churn_body, range(num_requests))}
    tails = sum(len(_churn_body(number)["messages"][1]["content"].split()) + 35 for number in range(num_requests))
    tokens = sum(len(system.split()) for system in systems) + tails
    return max(tokens // 16 // 10, 64)


async def _churn(server: Server, bodies: list[dict[str, Any]]) -> dict[int, str]:
    kept: dict[int, str] = {}
    queue = iter(enumerate(bodies))

    async def worker(client: httpx.AsyncClient) -> None:
        for number, body in queue:
            leaves = number % 10 == 0
            stream = await stream_chat(client, body, leave_after=number % 3 + 1 if leaves else None)
            if not leaves:
                kept[number] = stream.text

    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        await asyncio.gather(*(worker(client) for _ in range(24)))
    return kept


def _alone(server: Server, body: dict[str, Any]) -> str:
    httpx.post(f"{server.url}/cache/reset", json={}).raise_for_status()
    text: str = post(server, "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    return text


PARTS: dict[str, Callable[[], None]] = {
    "start": measure_start,
    "chat": measure_chat,
    "partial": measure_partial,
    "herd": measure_herd,
    "churn": measure_churn,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="what to measure; default: all")
    for part in parser.parse_args().parts or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main()
