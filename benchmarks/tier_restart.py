"""TTFT of a 1,400-word prompt: cold, and after kill -9 and a restart: python -m benchmarks.tier_restart [--rounds 3]

Each round starts the server twice on one new folder of the disk tier. Another prompt goes first each time, a new one,
so that neither measurement pays for what any first request pays.
"""

import argparse
import asyncio
import os
import signal
import statistics
import tempfile

import httpx

from benchmarks.serving import TIMEOUT, Server, Stream, cached_tokens, chat_body, post, serve, stream_chat, words

WORDS = 1400


async def ask(server: Server, seed: int, start: int) -> Stream:
    """The stream of the round's prompt, after one of other words, which differ from start to start."""
    async with httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT) as client:
        await stream_chat(client, chat_body(words(WORDS, 1000 * start + seed), "Warm up.", max_tokens=4))
        body = chat_body(words(WORDS, seed), "What was that about?", max_tokens=4, ignore_eos=True)
        return await stream_chat(client, body)


def measure(seed: int, options: list[str]) -> tuple[Stream, Stream]:
    """Cold, and warm after a crash."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["OPENAI_KV_PLUGINS__DISK__PATH"] = folder
        with serve("--tiers", "disk", *options) as server:
            cold = asyncio.run(ask(server, seed, start=1))
            post(server, "/generate", {"prompt": "The end.", "max_tokens": 1})  # its steps store what was left
            os.kill(server.pid, signal.SIGKILL)
        with serve("--tiers", "disk", *options) as server:
            return cold, asyncio.run(ask(server, seed, start=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    args, options = parser.parse_known_args()
    ratios = []
    print("| prompt tokens | from the tier | TTFT cold ms | after kill -9 ms | ratio | same text |")
    print("|---|---|---|---|---|---|")
    for seed in range(args.rounds):
        cold, warm = measure(seed, options)
        ratios.append(warm.ttft / cold.ttft)
        times = f"{cold.ttft * 1e3:.0f} | {warm.ttft * 1e3:.0f} | {ratios[-1]:.3f}"
        same = "yes" if cold.text == warm.text else "no"
        print(f"| {warm.usage['prompt_tokens']} | {cached_tokens(warm)} | {times} | {same} |", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
