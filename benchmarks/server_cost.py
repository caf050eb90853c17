"""What serving costs beside the model: `python -m benchmarks.server_cost [--streams 1 16 64] [--step-ms 70]`.

The server as a user starts it, in this process, and clients that only read, in another one. Of the steps that decode
all streams it tells:

- the gap: from the end of a forward pass to the start of the next, in parts, and how much of it the engine's thread had
  no core or no GIL;
- delivery: from the engine's hand-over to the last client's write, while the next step runs;
- the event loop's share of the process's CPU time, and CPU time a token. Shares of CPU time, unlike times, are about the same
  on a busy machine.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.serving import words
from benchmarks.watched_server import real_context
from openai_kv.engine.async_engine import AsyncEngine
from openai_kv.engine.engine import Engine
from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from openai_kv.server.context import ServerContext
from openai_kv.server.run import run
from openai_kv.server.streaming import EventStream

CLIENT = """
import asyncio, json, sys
async def one(port, number, model, text, tokens):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    messages = [{"role": "user", "content": f"Tell me story number {number}. {text}"}]
    params = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0}
    body = json.dumps({"model": model, "messages": messages, **params}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: h\\r\\nConnection: close\\r\\nContent-Length: {len(body)}\\r\\n"
    writer.write(f"{head}Content-Type: application/json\\r\\n\\r\\n".encode() + body)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
async def main(port, streams, model, text, tokens):
    await asyncio.gather(*(one(int(port), number, model, text, int(tokens)) for number in range(int(streams))))
asyncio.run(main(*sys.argv[1:]))
"""
PARTS = ("update", "report", "hand over", "commands", "schedule")


@dataclass
class Step:
    """Of one step, in seconds: `ends` when each part was over, and the thread's CPU time at both ends of the forward."""

    rows: int
    began: float
    cpu_began: float
    ended: float = 0.0
    cpu_ended: float = 0.0
    parts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    handed: float = 0.0
    sent: float = 0.0
    num_sent: int = 0


class Watch:
    """Wraps what a step goes through."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.engine_thread = 0

    def engine(self, engine: Engine, pause: float) -> None:
        self.engine_thread = threading.get_ident()
        execute = (lambda scheduled: echo(scheduled, pause)) if pause else engine.runner.execute_model
        scheduler: Any = engine.scheduler
        reporter: Any = engine._reporter

        def watched(scheduled: Any) -> Any:
            self.steps.append(Step(len(scheduled.requests), time.perf_counter(), time.thread_time()))
            try:
                return execute(scheduled)
            finally:
                self.steps[-1].ended, self.steps[-1].cpu_ended = time.perf_counter(), time.thread_time()

        engine.runner.execute_model = watched  # type: ignore[method-assign]
        scheduler.schedule = self.timed("schedule", scheduler.schedule)
        scheduler.update_from_output = self.timed("update", scheduler.update_from_output)
        reporter.report = self.timed("report", reporter.report)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                if self.steps:
                    self.steps[-1].parts[name] += time.perf_counter() - began

        return call

    def hand_over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        timed = self.timed("hand over", function)

        def call(engine: Any, outputs: Sequence[Any]) -> None:
            if self.steps:
                self.steps[-1].handed = time.perf_counter()
            timed(engine, outputs)

        return call

    def send(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **options: Any) -> None:
            await function(*arguments, **options)
            step = next((step for step in reversed(self.steps[-3:]) if step.handed), None)
            if step is not None:
                step.sent = time.perf_counter()
                step.num_sent += 1

        return call


def echo(scheduled: SchedulerOutput, pause: float) -> ModelRunnerOutput:
    """In a model's place: words of the prompt, after a while in which the interpreter is free."""
    time.sleep(pause)
    said = {
        request.request_id: [request.prompt_token_ids[8 + len(request.output_token_ids) % 16]]
        for request in scheduled.requests
        if request.samples
    }
    return ModelRunnerOutput(said)


@dataclass(frozen=True, slots=True)
class Clocks:
    """CPU seconds so far."""

    process: float
    loop: float
    engine: float
    wall: float

    @classmethod
    def now(cls, loop: int, engine: int) -> "Clocks":
        of_thread = [time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in (loop, engine)]
        return cls(time.process_time(), *of_thread, time.perf_counter())


def tell(steps: Sequence[Step], before: Clocks, after: Clocks, streams: int, tokens: int) -> None:
    pairs = [(a, b) for a, b in zip(steps, steps[1:], strict=False) if a.rows == b.rows == streams and a.handed]
    pairs = pairs[2:-2]
    gaps = [b.began - a.ended for a, b in pairs]
    waits = [gap - (b.cpu_began - a.cpu_ended) for gap, (a, b) in zip(gaps, pairs, strict=True)]
    lengths = [b.began - a.began for a, b in pairs]
    delivery = [a.sent - a.handed for a, _ in pairs if a.num_sent]
    share, process = (after.loop - before.loop), (after.process - before.process)
    print(f"{streams} streams, {len(pairs)} steps of {ms(lengths)} ms")
    print(f"  gap {ms(gaps)} ms, {sum(gaps) / sum(lengths):.1%} of the step; waiting {ms(waits)} ms, mean {mean(waits)}")
    parts = {name: [a.parts[name] for a, _ in pairs] for name in PARTS if name != "commands"}
    print("  of it " + ", ".join(f"{name} {ms(values)}" for name, values in parts.items()))
    print(f"  delivered {ms(delivery)} ms after the hand-over, p90 {1e3 * sorted(delivery)[len(delivery) * 9 // 10]:.2f}")
    print(f"  the loop's share of CPU {share / process:.1%} ({share / (after.wall - before.wall):.1%} of a core)")
    print(f"  the loop's CPU a token {1e6 * share / tokens:.0f} us, the engine's thread {1e6 * (after.engine - before.engine) / tokens:.0f}")


def ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.2f}"


def mean(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.fmean(seconds):.2f}"


def drive(watch: Watch, context: ServerContext, port: int, loop: int, options: argparse.Namespace) -> None:
    try:
        model = context.model_names[0]
        for streams in options.streams:
            for counted in (False, True):
                del watch.steps[:]
                before = Clocks.now(loop, watch.engine_thread)
                text = words(options.words, streams)
                arguments = [str(port), str(streams), model, text, str(options.tokens if counted else 4)]
                subprocess.run([sys.executable, "-c", CLIENT, *arguments], check=True)
                after = Clocks.now(loop, watch.engine_thread)
            tell(list(watch.steps), before, after, streams, streams * options.tokens)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=20)
    parser.add_argument("--port", type=int, default=8097)
    parser.add_argument("--step-ms", type=float, default=0.0, help="in place of each forward pass a pause of so long")
    options = parser.parse_args()
    context = real_context({"server.port": options.port})
    watch = Watch()
    AsyncEngine.on_outputs = watch.hand_over(AsyncEngine.on_outputs)  # type: ignore[method-assign]
    EventStream.send = watch.send(EventStream.send)  # type: ignore[method-assign]
    ready = AsyncEngine.on_ready
    loop = threading.get_ident()

    def on_ready(async_engine: AsyncEngine, engine: Engine) -> None:
        watch.engine(engine, options.step_ms / 1e3)
        ready(async_engine, engine)

    AsyncEngine.on_ready = on_ready  # type: ignore[method-assign]

    def begin(line: str) -> None:
        if line == "ready":
            threading.Thread(target=drive, args=(watch, context, options.port, loop, options), daemon=True).start()

    return run(context, begin)


if __name__ == "__main__":
    sys.exit(main())
