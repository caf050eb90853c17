"""The clients of benchmarks/soak.py: each makes one visit after the other, and tells how it ended."""

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from benchmarks.soak_requests import Habit, Visit, visit

SMALL = (socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # bytes; the system takes twice as much, or its own minimum
STALL_SECONDS = 20
SILENCE_SECONDS = 60
SLOW = (Habit.DAWDLES, Habit.STALLS)
STATUSES = ("200", "400", "404", "408", "429")
EXPECTED = ("done", "left", "gave up", "cut slow", "event request_timeout", "event queue_timeout", *STATUSES)


@dataclass
class Tally:
    """`outcomes`: how visits ended, by word: `done`, a status, `event CODE` for an error in a stream."""

    outcomes: Counter[str] = field(default_factory=Counter)
    habits: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)

    def add(self, number: int, one: Visit, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.habits[one.habit.name.lower() if one.body else "looks"] += 1
        if outcome not in EXPECTED:
            self.odd.append(f"{number}: {one.path} {one.habit.name}: {outcome}")


async def clients(url: str, seed: int, seconds: float, at_once: int, tally: Tally) -> None:
    """`at_once` of them, each with its next visit as soon as one is over."""
    numbers, over = itertools.count(), time.monotonic() + seconds
    async with connect(url) as client, connect(url, SMALL) as slow:
        model = (await client.get("/v1/models")).json()["data"][0]["id"]

        async def stay() -> None:
            while time.monotonic() < over:
                number = next(numbers)
                one = visit(seed, number, model)
                tally.add(number, one, await pay(slow if one.habit in SLOW else client, one))

        await asyncio.gather(*(stay() for _ in range(at_once)))


def connect(url: str, *options: tuple[int, int, int]) -> httpx.AsyncClient:
    """Its sockets have these options. Silence is an end: the system drops who does not read without telling them."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    transport = httpx.AsyncHTTPTransport(limits=limits, socket_options=options)
    return httpx.AsyncClient(base_url=url, transport=transport, timeout=httpx.Timeout(None, read=SILENCE_SECONDS))


async def pay(client: httpx.AsyncClient, one: Visit) -> str:
    """Make one visit; how it ended."""
    try:
        async with asyncio.timeout(one.patience):
            return await read(client, one)
    except TimeoutError:
        return "left"
    except (httpx.RemoteProtocolError, httpx.ReadError, httpx.ReadTimeout) as error:
        return "cut slow" if one.habit in SLOW else name_of(error, one)


def name_of(error: httpx.TransportError, one: Visit) -> str:
    """A stream has its keep-alives; who waits for a whole answer behind others may wait longer than it cares to."""
    is_whole = one.body is not None and not one.body.get("stream")
    return "gave up" if is_whole and isinstance(error, httpx.ReadTimeout) else f"cut: {type(error).__name__}"


async def read(client: httpx.AsyncClient, one: Visit) -> str:
    method, headers = "GET" if one.body is None else "POST", dict(one.headers)
    async with client.stream(method, one.path, json=one.body, headers=headers) as response:
        if not response.headers["content-type"].startswith("text/event-stream"):
            await response.aread()
            return str(response.status_code)
        return await follow(response, one)


async def follow(response: httpx.Response, one: Visit) -> str:
    """A stream as the client's habit has it."""
    tail, events, stalled = b"", 0, False
    async for piece in response.aiter_raw(512 if one.habit is Habit.DAWDLES else None):
        tail, events = (tail + piece)[-2048:], events + piece.count(b"data: ")
        if one.habit is Habit.LEAVES and events >= one.leave_after:
            return "left"
        if one.habit is Habit.DAWDLES:
            await asyncio.sleep(0.02)
        if one.habit is Habit.STALLS and events > 2 and not stalled:
            stalled = True
            await asyncio.sleep(STALL_SECONDS)
    return ending(tail)


def ending(tail: bytes) -> str:
    """Of a stream that was read to its end, from its last bytes."""
    if not tail.endswith(b"data: [DONE]\n\n"):
        return "no [DONE]"
    last = tail.removesuffix(b"data: [DONE]\n\n").rstrip().rpartition(b"data: ")[2]
    with contextlib.suppress(ValueError):
        return f"event {json.loads(last)['error']['code']}" if last.startswith(b'{"error"') else "done"
    return "done"
