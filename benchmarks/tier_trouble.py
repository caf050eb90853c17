"""A disk that is full, damaged files, a Valkey that goes and comes back: python -m benchmarks.tier_trouble

The same prompts are asked again and again, each time with an empty pool. All answers are compared with those of a
server without tiers. The full disk is a real one, a small tmpfs (needs to be root); Valkey is `valkey-server` or
`redis-server`. Exits with 1 if an answer was wrong.
"""

import argparse
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.forked_server import forked
from benchmarks.serving import Server, free_port, post
from benchmarks.tier_subject import Subject, body, damage

SMALL_DISK = "4m"  # a third of what the prompts' blocks take
DAMAGED_FILES = 60
SECONDS_TO_RETURN = 30.0
NUM_LOG_LINES = 4


@dataclass
class Live:
    """A server whose tier gets into trouble; `tell` prints what came of asking everything once more."""

    server: Server
    subject: Subject
    wrong: int = 0

    def tell(self, when: str) -> None:
        post(self.server, "/cache/reset", {"tiers": ["device"]})
        wrong, promoted = 0, 0
        for prompt, right in zip(self.subject.prompts, self.subject.right, strict=True):
            answer = post(self.server, "/generate", body(prompt))
            wrong += answer["token_ids"] != right
            promoted += sum(answer["cache_hit_tiers"].values()) - answer["cache_hit_tiers"]["device"]
        self.wrong += wrong
        tier = self.tier()
        problems = ", ".join(f"{kind} {count}" for kind, count in tier["problems"].items()) or "none"
        print(f"| {when} | {len(self.subject.prompts)} | {wrong} | {promoted} | {tier['blocks_used']} | {problems} |")

    def tier(self) -> dict[str, Any]:
        stats = httpx.get(f"{self.server.url}/cache/stats").json()
        tier: dict[str, Any] = stats["tiers"][0]
        return tier


@contextmanager
def serving(subject: Subject, folder: Path, tier: str, environment: Mapping[str, str]) -> Iterator[Live]:
    """Its log's lines on the tier follow."""
    log = folder / "log"
    with forked(*subject.options, "--tiers", tier, environment=environment, log=log) as server:
        print("\n| when | answers | wrong | tokens from the tier | blocks there | problems so far |")
        print("|---|---|---|---|---|---|")
        yield Live(server, subject)
    lines = [line for line in log.read_text().splitlines() if "cache tier" in line]
    print(*["", *lines[:NUM_LOG_LINES]], f"{len(lines)} such lines", sep="\n")
    log.unlink()


def full_disk(subject: Subject, folder: Path) -> int:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", disk], check=True)
    try:
        with serving(subject, folder, "disk", {"OPENAI_KV_PLUGINS__DISK__PATH": str(disk)}) as live:
            live.tell(f"the disk, {SMALL_DISK}, fills up")
            live.tell("it is full")
        return live.wrong
    finally:
        subprocess.run(["umount", disk], check=True)


def damaged_files(subject: Subject, folder: Path) -> int:
    blocks = folder / "blocks"
    with serving(subject, folder, "disk", {"OPENAI_KV_PLUGINS__DISK__PATH": str(blocks)}) as live:
        live.tell("stored")
        live.tell("loaded")
        kinds = damage(blocks, random.Random(1), DAMAGED_FILES)
        live.tell(", ".join(f"{count} files {kind}" for kind, count in kinds.items()))
        live.tell("once more")
    return live.wrong


@contextmanager
def valkey(port: int) -> Iterator[None]:
    """One that keeps nothing when it ends, up to its first answer."""
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    assert program is not None, "neither valkey-server nor redis-server is installed"
    with subprocess.Popen([program, "--port", str(port), "--save", ""], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("ready to accept connections" in line.lower() for line in process.stdout), "it did not start"
        yield
        process.kill()


def returning_server(subject: Subject, folder: Path) -> int:
    port = free_port()
    environment = {"OPENAI_KV_PLUGINS__VALKEY__URL": f"redis://127.0.0.1:{port}/0"}
    with serving(subject, folder, "valkey", environment) as live:
        with valkey(port):
            live.tell("stored")
            live.tell("loaded")
        live.tell("Valkey is killed")
        with valkey(port):
            wait_for(live)
            live.tell("it is back, empty")
            live.tell("loaded")
    return live.wrong


def wait_for(live: Live) -> None:
    """Until the tier is asked again."""
    deadline = time.monotonic() + SECONDS_TO_RETURN
    while not live.tier()["available"] and time.monotonic() < deadline:
        time.sleep(0.1)


STORIES: tuple[Callable[[Subject, Path], int], ...] = (full_disk, damaged_files, returning_server)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a name or a folder; a small random one if there is none")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        subject = Subject.make(args.model, Path(folder), seed=1)
        wrong = sum(story(subject, Path(folder)) for story in STORIES)
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
