"""The figures of docs/first-run.md: starts the installed server and measures it over HTTP on loopback.

python benchmarks/first_run.py            all of it, about 15 minutes on two cores
python benchmarks/first_run.py start chat  only these
"""

import argparse
import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import httpx

from benchmarks.serving import TIMEOUT, Server, cached_tokens, chat_body, post, serve, stream_chat, words


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
            row("1,400 words, twice: prompt / cached tokens", f"{warm.usage['prompt_tokens']} / {cached_tokens(warm)}")
            row("TTFT cold ms / exact ms / ratio",
                f"{cold.ttft * 1e3:.0f} / {warm.ttft * 1e3:.1f} / {warm.ttft / cold.ttft:.3f}")  # fmt: skip


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
    computed = sum(prompts) - sum(map(cached_tokens, streams))
    row("herd of 16: prompt tokens asked / computed", f"{sum(prompts)} / {computed}")
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
