"""Watches an event loop from within its process: which turns came late, what ran meanwhile, and what it cost."""

import asyncio
import gc
import json
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

TICK = 0.01
LIMIT = 0.1  # seconds of lateness that are written down
FRAMES = 4
OWN = Path(__file__).name
IDLE = (" _worker", " _next", " _wait", " wait")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the loop's thread had so far, in seconds: a core, and a place in the line for one (Linux only)."""

    cpu: float
    waiting: float

    @classmethod
    def now(cls, thread: int) -> "Usage":
        file = Path(f"/proc/self/task/{thread}/schedstat")
        waiting = int(file.read_text().split()[1]) / 1e9 if file.exists() else 0.0
        return cls(time.thread_time(), waiting)


class LoopWatch:
    """A beat in the loop, and a thread that looks at all stacks when the beat stays away. Writes a line per stall."""

    def __init__(self, log: TextIO) -> None:
        self.worst = 0.0
        self._log = log
        self._seen: list[dict[str, list[str]]] = []
        self._collecting = 0.0
        self._gc_started = 0.0
        self._over = threading.Event()

    def start(self) -> None:
        """From a task of the loop that is to be watched."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_native_id()
        self._started = time.monotonic()
        gc.callbacks.append(self._on_gc)
        self._rest()
        threading.Thread(target=self._watch, name="loop-watch", daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._timer.cancel()
        gc.callbacks.remove(self._on_gc)

    def write(self, **record: Any) -> None:
        print(json.dumps({"at": round(time.monotonic() - self._started, 2), **record}), file=self._log, flush=True)

    def _rest(self) -> None:
        self._usage, self._collecting, self._due = Usage.now(self._thread), 0.0, time.monotonic() + TICK
        self._timer = self._loop.call_later(TICK, self._beat)

    def _beat(self) -> None:
        late = time.monotonic() - self._due
        self.worst = max(self.worst, late)
        if late > LIMIT:
            self._report(late)
        self._rest()

    def _report(self, late: float) -> None:
        """`cause` is what took most: the loop's own work, other processes, or the interpreter's other threads."""
        usage, seen = Usage.now(self._thread), list(self._seen)
        shares = {"own work": usage.cpu - self._usage.cpu, "no core": usage.waiting - self._usage.waiting}
        shares["other threads"] = max(late - sum(shares.values()), 0.0)
        shown = {name: round(seconds * 1e3, 1) for name, seconds in shares.items()}
        cause = max(shares, key=lambda name: shares[name])
        gc_ms = round(self._collecting * 1e3, 1)
        self.write(late_ms=round(late * 1e3, 1), cause=cause, ms=shown, gc_ms=gc_ms, seen=seen[-3:])
        self._seen.clear()

    def _watch(self) -> None:
        while not self._over.wait(TICK):
            if time.monotonic() - self._due > LIMIT / 2:
                self._seen.append(stacks())

    def _on_gc(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_started = time.perf_counter()
        else:
            self._collecting += time.perf_counter() - self._gc_started


def stacks() -> dict[str, list[str]]:
    """The innermost calls of each thread but those that watch or wait."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames().items()
    shown = {names.get(ident, str(ident)): innermost(frame) for ident, frame in frames}
    return {name: lines for name, lines in shown.items() if not (lines[0].endswith(IDLE) or OWN in "".join(lines))}


def innermost(frame: FrameType) -> list[str]:
    calls = traceback.extract_stack(frame)[-FRAMES:]
    return [f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in reversed(calls)]
