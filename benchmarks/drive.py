"""Send a schedule of chats to a server, in order, a few at once."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.serving import TIMEOUT, Stream, cached_tokens, stream_chat
from benchmarks.workload import Turn


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request showed its client."""

    prompt_tokens: int
    cached_tokens: int
    ttft: float


@dataclass(frozen=True, slots=True)
class Drive:
    """One pass over a schedule; answers in its order."""

    answers: tuple[Answer, ...]
    seconds: float
    evictions: int


@dataclass
class Client:
    """Knows what was said so far in each conversation."""

    http: httpx.AsyncClient
    model: str
    answer_tokens: int
    history: dict[int, list[dict[str, str]]] = field(default_factory=dict)

    async def ask(self, turn: Turn) -> Answer:
        said = self.history.setdefault(turn.conversation, [{"role": "system", "content": turn.system}])
        said.append({"role": "user", "content": turn.message})
        stream = await stream_chat(self.http, self._body(said))
        said.append({"role": "assistant", "content": stream.text})
        return answer_of(stream)

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        """Greedy and of fixed length, so that every policy has the same work."""
        params = {"temperature": 0, "max_tokens": self.answer_tokens, "ignore_eos": True}
        return {"model": self.model, "messages": messages, **params}


def answer_of(stream: Stream) -> Answer:
    return Answer(stream.usage["prompt_tokens"], cached_tokens(stream), stream.ttft)


async def drive(url: str, turns: Sequence[Turn], *, model: str, answer_tokens: int, concurrency: int) -> Drive:
    """Each turn is sent when all before it were, fewer than `concurrency` run and its conversation is not waiting.

    Nobody waits for think times: they decide the order alone. Raises httpx.HTTPError.
    """
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT) as http:
        await warm_up(http, model)
        before = await evictions(http)
        started = time.perf_counter()
        answers = await send(Client(http, model, answer_tokens), turns, concurrency)
        return Drive(tuple(answers), time.perf_counter() - started, await evictions(http) - before)


async def send(client: Client, turns: Sequence[Turn], concurrency: int) -> list[Answer]:
    room = asyncio.Semaphore(concurrency)
    latest: dict[int, asyncio.Task[Answer]] = {}

    async def ask(turn: Turn) -> Answer:
        try:
            return await client.ask(turn)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        tasks = []
        for turn in turns:
            if turn.conversation in latest:
                await latest[turn.conversation]
            await room.acquire()
            latest[turn.conversation] = group.create_task(ask(turn))
            tasks.append(latest[turn.conversation])
    return [task.result() for task in tasks]


async def warm_up(http: httpx.AsyncClient, model: str) -> None:
    """The first request pays for what is built lazily. This one is shorter than a block."""
    response = await http.post("/v1/completions", json={"model": model, "prompt": "Hi", "max_tokens": 1})
    response.raise_for_status()


async def evictions(http: httpx.AsyncClient) -> int:
    stats = (await http.get("/cache/stats")).raise_for_status().json()
    count: int = stats["eviction_count"]
    return count
