"""What benchmarks/soak.py asks, and how each client behaves: all of it follows from the seed and the number."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from benchmarks.serving import words

SYSTEMS = tuple(words(length, seed) for seed, length in enumerate((40, 80, 120, 200, 300)))
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMATS = ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}})
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": PERSON}}
LOOKS = ("/metrics", "/cache/stats", "/cache/tree?depth=8", "/cache/blocks", "/v1/models")
BAD: tuple[Mapping[str, Any], ...] = (
    {"temperature": "hot"},
    {"max_tokens": 10**7},
    {"stop_sequences": ["x"]},
    {"n": 1000},
    {"model": "none-such"},
    {"messages": []},
    {"response_format": {"type": "json_schema"}},
    {"logit_bias": {"x": 1}},
)


class Habit(Enum):
    """How a client reads: all of it, up to a point, slowly, or not at all for a while after the beginning."""

    READS = auto()
    LEAVES = auto()
    DAWDLES = auto()
    STALLS = auto()


@dataclass(frozen=True, slots=True)
class Visit:
    """One request; no body: a GET. Who leaves does so after `leave_after` events or `patience` seconds."""

    path: str
    body: Mapping[str, Any] | None
    habit: Habit = Habit.READS
    headers: Mapping[str, str] = field(default_factory=dict)
    leave_after: int = 0
    patience: float | None = None


def visit(seed: int, number: int, model: str) -> Visit:
    rng = random.Random(f"{seed}-{number}")
    if rng.random() < 0.06:
        return Visit(rng.choice(LOOKS), None)
    path, body = question(rng, model)
    if rng.random() < 0.08:
        return Visit("/v1/chat/completions", {**body, **rng.choice(BAD)})
    body |= options(rng) | (of_chat(rng) if path == "/v1/chat/completions" else {})
    headers = {"X-Request-Timeout": f"{rng.uniform(0.05, 8):.2f}"} if rng.random() < 0.15 else {}
    habit = rng.choices(list(Habit), (60, 22, 14, 4))[0]
    if habit in (Habit.DAWDLES, Habit.STALLS):
        body |= bulky(path)
    patience = rng.uniform(0, 3) if habit is Habit.LEAVES and rng.random() < 0.5 else None
    return Visit(path, body, habit, headers, rng.randint(1, 20), patience)


def question(rng: random.Random, model: str) -> tuple[str, dict[str, Any]]:
    """Mostly chats behind one of a few system prompts, some of them with turns before."""
    text = words(rng.randint(3, 60), rng.randrange(40))
    kind = rng.random()
    if kind < 0.12:
        return "/v1/completions", {"model": model, "prompt": f"{rng.choice(SYSTEMS)} {text}"}
    if kind < 0.2:
        return "/generate", {"model": model, "prompt": f"{rng.choice(SYSTEMS)} {text}"}
    turns = [{"role": "system", "content": rng.choice(SYSTEMS)}]
    for turn in range(rng.choice((0, 0, 0, 1, 2))):
        turns += [{"role": "user", "content": words(9, turn)}, {"role": "assistant", "content": words(20, turn)}]
    return "/v1/chat/completions", {"model": model, "messages": [*turns, {"role": "user", "content": text}]}


def options(rng: random.Random) -> dict[str, Any]:
    """Of all three routes."""
    chosen: dict[str, Any] = {"max_tokens": rng.randint(1, 24), "stream": rng.random() < 0.9}
    extras: tuple[tuple[float, dict[str, Any]], ...] = (
        (0.2, {"stop": rng.sample((" the", "\n\n", "people", "e"), 2)}),
        (0.1, {"response_format": rng.choice(FORMATS)}),
        (0.3, {"temperature": 0}),
        (0.2, {"seed": rng.randrange(5), "top_p": 0.9, "frequency_penalty": 0.5}),
        (0.1, {"priority": rng.randint(-3, 3)}),
        (0.1, {"cache_salt": rng.choice(("red", "blue"))}),
        (0.05, {"prompt_cache_options": {"mode": "explicit"}}),
        (0.05, {"prompt_cache_options": {"ttl": "5s"}}),
        (0.1, {"ignore_eos": True}),
    )
    for share, extra in extras:
        if rng.random() < share:
            chosen |= extra
    return chosen


def of_chat(rng: random.Random) -> dict[str, Any]:
    """Choices and tools; a model whose template takes none answers tools with a 400."""
    several = {"n": rng.randint(2, 4)} if rng.random() < 0.15 else {}
    tools = {"tools": [TOOL], "tool_choice": rng.choice(("auto", "required"))} if rng.random() < 0.05 else {}
    return {**several, **tools}


def bulky(path: str) -> dict[str, Any]:
    """So much output that no buffer between client and server holds all of it."""
    many = {"logprobs": True, "top_logprobs": 20} if path == "/v1/chat/completions" else {"logprobs": 20}
    return {"stream": True, "max_tokens": 80, "ignore_eos": True, "response_format": {"type": "text"}, **many}
