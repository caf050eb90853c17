"""kill -9 under load, again and again, on one folder of the disk tier. Is there ever a wrong answer?

    python -m benchmarks.tier_kill --rounds 100 --seed 1 --log benchmarks/results/tier_kill.jsonl
    python -m benchmarks.tier_kill --rounds 100 --seed 1 --model smollm2-135m-instruct --tier-bytes 96MiB

Conversations that share prefixes go through a pool and a disk tier that are both too small for them, so that blocks
are stored, loaded, evicted and dropped all the time. Some time after the first answer of a round, or after that in the
middle of writing a file, the server is killed; before some of the starts, files are damaged. `--batch-invariant` makes
greedy answers the same bits in any batch, so each is compared with the one that a server without tiers gave before.
The model is a small random one unless another is named.
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
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.forked_server import forked
from benchmarks.serving import TIMEOUT, Server
from benchmarks.tier_subject import OPTIONS, Subject, body, damage, records, unfinished

TIER = ("--tiers", "disk")
CLIENTS = 4
DAMAGED_ROUNDS, DAMAGED_FILES = 0.3, 10
SECONDS_TO_LIVE = 1.5  # at most, after the first answer
SECONDS_TO_WRITE = 2.0


@dataclass
class Life:
    """What was seen of one round, a line of the log."""

    number: int
    damage: Mapping[str, int]  # of files, before the start, by kind
    moment: str
    ready_seconds: float = 0.0
    answers: int = 0
    hits: int = 0  # answers with blocks from the tier
    promoted_tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    problems: Mapping[str, int] = field(default_factory=dict)  # of the tier, after the latest answer
    swept_files: int = 0  # which the kill before had left unfinished
    unfinished_files: int = 0  # left by this one
    records: int = 0


@dataclass
class Round:
    """One life of the server: clients ask until it is gone."""

    server: Server
    folder: Path
    rng: random.Random
    subject: Subject
    life: Life

    async def run(self) -> None:
        self.answered, left = asyncio.Event(), unfinished(self.folder)
        clients = [asyncio.create_task(self.client(random.Random(self.rng.random()))) for _ in range(CLIENTS)]
        await self.answered.wait()
        self.life.swept_files = len(left - unfinished(self.folder))
        await asyncio.sleep(self.rng.uniform(0.0, SECONDS_TO_LIVE))
        if self.life.moment == "write":
            await asyncio.to_thread(self.until_writing)
        os.kill(self.server.pid, signal.SIGKILL)
        await asyncio.gather(*clients)

    def until_writing(self) -> None:
        """Stop it wherever a folder changes, until that is in the middle of a file."""
        seen, deadline = newest(self.folder), time.monotonic() + SECONDS_TO_WRITE
        while time.monotonic() < deadline:
            before, seen = seen, newest(self.folder)
            if seen != before:
                os.kill(self.server.pid, signal.SIGSTOP)
                if unfinished(self.folder):
                    return
                os.kill(self.server.pid, signal.SIGCONT)
            time.sleep(0.0002)

    async def client(self, rng: random.Random) -> None:
        async with httpx.AsyncClient(base_url=self.server.url, timeout=TIMEOUT) as http:
            while True:
                number = rng.randrange(len(self.subject.prompts))
                try:
                    self.take(number, await http.post("/generate", json=body(self.subject.prompts[number])))
                    self.life.problems = (await http.get("/cache/stats")).json()["tiers"][0]["problems"]
                except httpx.TransportError:
                    return

    def take(self, number: int, response: httpx.Response) -> None:
        life, answer = self.life, response.json()
        life.answers += 1
        self.answered.set()
        if response.status_code != 200 or answer["token_ids"] != self.subject.right[number]:
            life.wrong.append(f"prompt {number}: {response.status_code} {response.text[:200]}")
        else:
            life.promoted_tokens += answer["cache_hit_tiers"]["disk"]
            life.hits += answer["cache_hit_tiers"]["disk"] > 0


def newest(folder: Path) -> int:
    """When one of the tier's folders was changed last: a file began in it, or was renamed."""
    return max((each.stat().st_mtime_ns for each in folder.glob("*/*")), default=0)


@dataclass
class Bench:
    """Rounds on one folder, `log` gets a line after each."""

    args: argparse.Namespace
    folder: Path

    def run(self) -> bool:
        """Whether all answers were right."""
        begin, self.subject = time.monotonic(), Subject.make(self.args.model, self.folder, self.args.seed)
        self.blocks = self.folder / "blocks"
        self.environment = {
            "OPENAI_KV_PLUGINS__DISK__PATH": str(self.blocks),
            "OPENAI_KV_PLUGINS__DISK__MAX_BYTES": self.args.tier_bytes,
        }
        told = {name: getattr(self.args, name) for name in ("model", "seed", "tier_bytes")}
        self.tell(told | {"options": [*OPTIONS, *TIER]})
        lives = [self.round(number) for number in range(1, self.args.rounds + 1)]
        total = summary(lives)
        self.tell(total | {"seconds": round(time.monotonic() - begin)})
        return not any(life.wrong for life in lives)

    def round(self, number: int) -> Life:
        rng = random.Random(f"{self.args.seed} {number}")
        damaged = damage(self.blocks, rng, DAMAGED_FILES) if rng.random() < DAMAGED_ROUNDS else {}
        life = Life(number, damaged, rng.choice(["any", "write"]))
        with forked(*self.subject.options, *TIER, environment=self.environment) as server:
            life.ready_seconds = round(server.seconds_to_ready, 1)
            asyncio.run(Round(server, self.blocks, rng, self.subject, life).run())
        life.unfinished_files = len(unfinished(self.blocks))
        life.records = len(records(self.blocks))
        self.tell(asdict(life))
        return life

    def tell(self, line: Mapping[str, Any]) -> None:
        print(json.dumps(line), flush=True)
        if self.args.log is not None:
            with self.args.log.open("a") as file:
                file.write(json.dumps(line) + "\n")


def summary(lives: list[Life]) -> dict[str, Any]:
    problems: Counter[str] = Counter()
    for life in lives:
        problems.update(life.problems)
    return {
        "rounds": len(lives),
        "answers": sum(life.answers for life in lives),
        "wrong": sum(len(life.wrong) for life in lives),
        "answers_with_hits": sum(life.hits for life in lives),
        "rounds_with_hits": sum(life.hits > 0 for life in lives),
        "promoted_tokens": sum(life.promoted_tokens for life in lives),
        "rounds_killed_while_writing": sum(life.unfinished_files > 0 for life in lives),
        "swept_files": sum(life.swept_files for life in lives),
        "damaged_files": sum(sum(life.damage.values()) for life in lives),
        "problems": problems,
        "slowest_start_seconds": max(life.ready_seconds for life in lives),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", default="", help="a name or a folder; a small random one if there is none")
    parser.add_argument("--tier-bytes", default="6MiB")
    parser.add_argument("--log", type=Path, help="JSON lines")
    args = parser.parse_args()
    if args.log is not None:
        args.log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        raise SystemExit(not Bench(args, Path(folder)).run())


if __name__ == "__main__":
    main()
