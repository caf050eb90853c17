"""200 clients at once for minutes: hang-ups, slow readers, deadlines, bad requests. What is left of it at the end?

    python -m benchmarks.soak --minutes 10 --seed 1 --json benchmarks/results/soak.json

The server is a process of its own, watched from within (`benchmarks/loop_watch.py`). The record: how each request
ended, its memory every 10 seconds, every stall of its event loop over 100 ms with what ran then, and, when all is
over, whether a block is still referenced and the cache is whole.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving import end, free_port, status_kib, wait_ready
from benchmarks.soak_clients import Tally, clients

SAMPLE_SECONDS = 10
SETTLE_SECONDS = 60
WRITE_TIMEOUT = 5
ABORTS = "openai_kv_aborts_total{"
FIGURES = ("active_requests", "eviction_count", "preemption_count", "token_hit_rate")


async def soak(url: str, pid: int, arguments: argparse.Namespace) -> dict[str, Any]:
    tally, rss_mib, started = Tally(), list[float](), time.monotonic()
    sampling = asyncio.create_task(sample(pid, rss_mib))
    await clients(url, arguments.seed, arguments.minutes * 60, arguments.clients, tally)
    settled = await settle(url)
    sampling.cancel()
    seconds = round(time.monotonic() - started, 1)
    counts = {"requests": tally.outcomes.total(), "outcomes": tally.outcomes, "habits": tally.habits}
    return {"seconds": seconds, **counts, "odd": tally.odd, "rss_mib": rss_mib, "at_the_end": settled}


async def sample(pid: int, rss_mib: list[float]) -> None:
    while True:
        rss_mib.append(round(status_kib(pid, "VmRSS") / 1024, 1))
        await asyncio.sleep(SAMPLE_SECONDS)


async def settle(url: str) -> dict[str, Any]:
    """The server's figures once no request is left, or after a minute."""
    deadline = time.monotonic() + SETTLE_SECONDS
    async with httpx.AsyncClient(base_url=url, timeout=SETTLE_SECONDS) as client:
        stats = (await client.get("/cache/stats")).json()
        while stats["active_requests"] and time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            stats = (await client.get("/cache/stats")).json()
        metrics = (await client.get("/metrics")).text.splitlines()
    aborts = [line for line in metrics if line.startswith(ABORTS)]
    return {**stats["blocks"], **{name: stats[name] for name in FIGURES}, "aborts": aborts}


@contextlib.contextmanager
def watched_server(log: Path, options: list[str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.watched_server", str(log), "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONWARNINGS": "ignore"})
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, process.poll)
        yield url, process
    finally:
        if process.poll() is None:
            process.kill()


def wait_for_check(log: Path) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while "integrity" not in log.read_text(encoding="utf-8") and time.monotonic() < deadline:
        time.sleep(0.1)


def stalls(log: Path) -> dict[str, Any]:
    """What the watch wrote: stalls, and last the check."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    late = [line for line in lines if "late_ms" in line]
    check: dict[str, Any] = next((line for line in lines if "integrity" in line), {})
    causes = Counter(line["cause"] for line in late)
    return {"integrity": check.get("integrity"), "worst_ms": check.get("worst_ms"), "causes": causes, "stalls": late}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("options", nargs="*", help="of openai-kv serve, after --")
    arguments = parser.parse_args()
    options = ["--write-timeout", str(WRITE_TIMEOUT), *arguments.options]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "stalls.jsonl"
        with watched_server(log, options) as (url, process):
            record = asyncio.run(soak(url, process.pid, arguments))
            process.send_signal(signal.SIGUSR1)
            wait_for_check(log)
            exit_code = end(process)
        settings = {"seed": arguments.seed, "clients": arguments.clients, "options": options}
        record = {**settings, **record, **stalls(log), "exit_code": exit_code}
    text = json.dumps(record, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    failed = record["integrity"] != "clean" or record["at_the_end"]["referenced"] or record["odd"] or exit_code
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
