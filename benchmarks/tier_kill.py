"""kill -9 under load, again and again, on one folder of the disk tier. Is there ever a wrong answer?

    python -m benchmarks.tier_kill --rounds 100 --seed 1 --json benchmarks/results/tier_kill.json

Conversations that share prefixes go through a pool and a disk tier that are both too small for them, so that blocks
are stored, loaded, evicted and dropped all the time; at a random moment the server is killed, and started again on
what it left. `--batch-invariant` makes greedy answers the same bits in any batch, so each is compared with the one
that a server without tiers gave to the same prompt before.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving import TIMEOUT, Server, post, serve

OPTIONS = ("--batch-invariant", "--num-blocks", "224", "--max-model-len", "1024")
TIER = ("--tiers", "disk")
TIER_BYTES = "96MiB"
CLIENTS, STEMS, PROMPTS = 4, 6, 60
VOCABULARY = range(1000, 20000)


@dataclass
class Tally:
    answers: int = 0
    promoted_tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    seconds_to_ready: list[float] = field(default_factory=list)


def make_prompts(seed: int) -> list[list[int]]:
    """Of 100 to 800 tokens, a few beginnings among them all."""
    rng = random.Random(seed)
    stems = [rng.choices(VOCABULARY, k=rng.randrange(80, 700)) for _ in range(STEMS)]
    return [[*rng.choice(stems), *rng.choices(VOCABULARY, k=rng.randrange(20, 100))] for _ in range(PROMPTS)]


def body(prompt: list[int]) -> dict[str, Any]:
    return {"prompt_token_ids": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def reference(prompts: list[list[int]]) -> list[list[int]]:
    with serve(*OPTIONS) as server:
        return [post(server, "/generate", body(prompt))["token_ids"] for prompt in prompts]


@dataclass
class Round:
    """One life of the server: clients ask until it is gone."""

    server: Server
    rng: random.Random
    prompts: list[list[int]]
    right: list[list[int]]
    tally: Tally

    async def run(self) -> None:
        """Kill it within some seconds; what it says of its tier shortly before that is kept."""
        clients = [asyncio.create_task(self.client(random.Random(self.rng.random()))) for _ in range(CLIENTS)]
        await asyncio.sleep(self.rng.uniform(0.1, 4.0))
        async with httpx.AsyncClient(base_url=self.server.url, timeout=TIMEOUT) as http:
            stats = (await http.get("/cache/stats")).json()
        self.tally.problems.update(stats["tiers"][0]["problems"])
        await asyncio.sleep(self.rng.uniform(0.0, 0.2))
        os.kill(self.server.pid, signal.SIGKILL)
        await asyncio.gather(*clients)

    async def client(self, rng: random.Random) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=TIMEOUT) as http:
            while True:
                number = rng.randrange(len(self.prompts))
                try:
                    self.take(number, await http.post("/generate", json=body(self.prompts[number])))
                except httpx.TransportError:
                    return

    def take(self, number: int, response: httpx.Response) -> None:
        self.tally.answers += 1
        if response.status_code != 200 or response.json()["token_ids"] != self.right[number]:
            self.tally.wrong.append(f"prompt {number}: {response.status_code} {response.text[:200]}")
        else:
            self.tally.promoted_tokens += response.json()["cache_hit_tiers"]["disk"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng, prompts, tally = random.Random(args.seed), make_prompts(args.seed), Tally()
    right, begin = reference(prompts), time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ |= {"OPENAI_KV_PLUGINS__DISK__PATH": folder, "OPENAI_KV_PLUGINS__DISK__MAX_BYTES": TIER_BYTES}
        for number in range(args.rounds):
            with serve(*OPTIONS, *TIER) as server:
                tally.seconds_to_ready.append(round(server.seconds_to_ready, 1))
                asyncio.run(Round(server, rng, prompts, right, tally).run())
            so_far = f"{tally.answers} answers, {len(tally.wrong)} wrong, {dict(tally.problems)}"
            print(f"round {number + 1}: {so_far}", flush=True)
    record = {"seed": args.seed, "rounds": args.rounds, "options": [*OPTIONS, *TIER], "tier_bytes": TIER_BYTES,
              "seconds": round(time.monotonic() - begin), "answers": tally.answers, "wrong": tally.wrong,
              "promoted_tokens": tally.promoted_tokens, "problems": tally.problems,
              "slowest_start_seconds": max(tally.seconds_to_ready)}  # fmt: skip
    if args.json is not None:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))
    raise SystemExit(bool(tally.wrong))


if __name__ == "__main__":
    main()
