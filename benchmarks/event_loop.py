"""How late the event loop is while 32 clients stream from the default model (figures in docs/first-run.md).

    python benchmarks/event_loop.py

A timer in the server's own loop wants to run every 5 ms. Its lateness has three causes: the loop's own work, the GIL,
and the system giving the cores to others; the thread's CPU time between two ticks tells the first one apart.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

import uvicorn

from openai_kv.build import build_context
from openai_kv.config import load_settings
from openai_kv.plugins import load_plugins
from openai_kv.server.app import create_app

TICK = 0.005
PORT = 8097
CLIENT = """
import asyncio, httpx, sys
async def one(client, number):
    messages = [{"role": "user", "content": f"Tell me story number {number}. " + "word " * 150}]
    params = {"max_tokens": 64, "ignore_eos": True, "stream": True}
    body = {"model": "smollm2-135m-instruct", "messages": messages, **params}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        async for _ in response.aiter_lines():
            pass
async def main():
    async with httpx.AsyncClient(base_url=sys.argv[1], timeout=600) as client:
        await asyncio.gather(*(one(client, number) for number in range(32)))
asyncio.run(main())
"""


@dataclass
class Meter:
    """Lateness and own CPU time of each tick, in seconds."""

    late: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            due, cpu = time.monotonic() + TICK, time.thread_time()
            await asyncio.sleep(TICK)
            self.late.append(time.monotonic() - due)
            self.busy.append(time.thread_time() - cpu)


async def main() -> None:
    context = build_context(load_settings({"server.port": PORT}), load_plugins())
    server = uvicorn.Server(uvicorn.Config(create_app(context), port=PORT, log_config=None, lifespan="off"))
    context.engine.start()
    await context.engine.settled.wait()
    serving = asyncio.create_task(server.serve())
    idle, loaded = Meter(), Meter()
    await measure(idle, asyncio.sleep(3))
    started = time.monotonic()
    await measure(loaded, clients())
    seconds = time.monotonic() - started
    print(f"idle: worst lateness {max(idle.late) * 1e3:.1f} ms")
    print(
        f"32 streams: worst lateness {max(loaded.late) * 1e3:.1f} ms, p99 {percentile(loaded.late, 0.99) * 1e3:.1f} ms"
    )
    print(f"32 streams: most CPU of the loop between two ticks {max(loaded.busy) * 1e3:.1f} ms")
    print(
        f"32 streams: the loop's share of one core {sum(loaded.busy) / seconds:.1%} ({32 * 64 / seconds:.0f} tokens/s)"
    )
    server.should_exit = True
    await serving
    await context.engine.stop()


async def measure(meter: Meter, work: Awaitable[None]) -> None:
    ticking = asyncio.create_task(meter.run())
    await work
    ticking.cancel()


async def clients() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, f"http://127.0.0.1:{PORT}", stderr=subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


if __name__ == "__main__":
    asyncio.run(main())
