"""What serving costs beside the model: python -m benchmarks.server_cost [--streams 1 16 64] [--step-ms 70]

The server as a user starts it, in this process, and clients that only read, in another one. Of the steps that decode
all streams it tells the gap from a forward pass to the next one, when the last client of a step was written to, and
CPU times of the two threads. CPU times are about the same on a busy machine; other times are not.

With `--step-ms` a forward pass is a pause, and says words of the prompt: all that is left is the server's own. It
consists of `--operators` sleeps, each followed by a little Python, as torch's operators give the interpreter away while
they compute. `--switch-ms 5 0.5` compares Python's switch intervals, six steps each in turns.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from benchmarks.serving import words
from benchmarks.step_watch import Step, StepWatch
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
    head = ["POST /v1/chat/completions HTTP/1.1", "Host: h", "Connection: close", "Content-Type: application/json"]
    writer.write("\\r\\n".join([*head, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
async def main(port, streams, model, text, tokens):
    await asyncio.gather(*(one(int(port), number, model, text, int(tokens)) for number in range(int(streams))))
asyncio.run(main(*sys.argv[1:]))
"""
PARTS = ("update", "report", "hand over", "schedule")


@dataclass(frozen=True, slots=True)
class Echo:
    """In a model's place."""

    seconds: float
    operators: int

    def execute(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        for _ in range(self.operators):
            time.sleep(self.seconds / self.operators)
            sum(range(500))
        said = {
            request.request_id: [request.prompt_token_ids[8 + len(request.output_token_ids) % 16]]
            for request in scheduled.requests
            if request.samples
        }
        return ModelRunnerOutput(said)


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds so far: CPU time of the process and of two of its threads, and of the clock on the wall."""

    process: float
    loop: float
    engine: float
    wall: float

    @classmethod
    def now(cls, loop: int, engine: int) -> "Clocks":
        of_loop, of_engine = (time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in (loop, engine))
        return cls(time.process_time(), of_loop, of_engine, time.perf_counter())

    def since(self, before: "Clocks") -> "Clocks":
        return Clocks(
            self.process - before.process, self.loop - before.loop, self.engine - before.engine, self.wall - before.wall
        )


def tell(steps: Sequence[Step], spent: Clocks, streams: int, tokens: int) -> None:
    print(f"{streams} streams: {spent.loop / spent.process:.1%} of the CPU time is the event loop's,")
    print(f"    which is busy {spent.loop / spent.wall:.1%} of the time")
    print(f"    CPU time of a token: the loop's {each(spent.loop, tokens)}, the engine's {each(spent.engine, tokens)}")
    pairs = [(a, b) for a, b in pairwise(steps) if a.rows == b.rows == streams and a.handed][2:-2]
    for turn in sorted({a.turn for a, _ in pairs}):
        tell_steps([(a, b) for a, b in pairs if a.turn == b.turn == turn], turn)


def tell_steps(pairs: Sequence[tuple[Step, Step]], turn: float) -> None:
    gaps = [b.began - a.ended for a, b in pairs]
    cpu = [b.cpu_began - a.cpu_ended for a, b in pairs]
    parts = ", ".join(f"{name} {ms([a.parts[name] for a, _ in pairs])}" for name in PARTS)
    print(
        f"  {len(pairs)} steps, switch interval {1e3 * turn:g} ms: {ms([b.began - a.began for a, b in pairs])} ms each"
    )
    print(f"    forward {ms([a.ended - a.began for a, _ in pairs])}, gap {ms(gaps)} (CPU {ms(cpu)}): {parts}")
    print(
        f"    the last client written to {ms([a.sent - a.handed for a, _ in pairs if a.sent])} ms after the hand-over"
    )


def ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.2f}"


def each(seconds: float, count: int) -> str:
    return f"{1e6 * seconds / count:.0f} us"


def drive(watch: StepWatch, context: ServerContext, loop: int, options: argparse.Namespace) -> None:
    """A few tokens to warm up, then those that count, for each number of streams; then the server is to end."""
    try:
        for streams in options.streams:
            ask(context, streams, 4, options)
            watch.steps.clear()
            before = Clocks.now(loop, watch.engine_thread)
            ask(context, streams, options.tokens, options)
            spent = Clocks.now(loop, watch.engine_thread).since(before)
            tell(list(watch.steps), spent, streams, streams * options.tokens)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def ask(context: ServerContext, streams: int, tokens: int, options: argparse.Namespace) -> None:
    arguments = (options.port, streams, context.model_names[0], words(20, streams), tokens)
    subprocess.run([sys.executable, "-c", CLIENT, *map(str, arguments)], check=True)


def main() -> int:
    options = arguments()
    context = real_context({"server.port": options.port, "engine.async_scheduling": options.async_scheduling})
    watch, loop = StepWatch([each / 1e3 for each in options.switch_ms]), threading.get_ident()
    echo = Echo(options.step_ms / 1e3, options.operators)
    hooks: Any = AsyncEngine
    stream: Any = EventStream
    hooks.on_outputs, stream.send = watch.hand_over(AsyncEngine.on_outputs), watch.send(EventStream.send)
    ready = AsyncEngine.on_ready

    def on_ready(async_engine: AsyncEngine, engine: Engine) -> None:
        watch.engine(engine, echo.execute if options.step_ms else engine.runner.execute_model)
        ready(async_engine, engine)

    hooks.on_ready = on_ready

    def begin(line: str) -> None:
        if line == "ready":
            threading.Thread(target=drive, args=(watch, context, loop, options), daemon=True).start()

    return run(context, begin)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=64, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--operators", type=int, default=1)
    parser.add_argument("--switch-ms", type=float, nargs="+", default=[])
    parser.add_argument("--async-scheduling", choices=["on", "off"], default="off")
    parser.add_argument("--port", type=int, default=8097)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
