"""A mix of chats for benchmarks/eviction.py: conversations behind shared system prompts, and one-shot scans."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.conversations import Habits
from benchmarks.serving import words

TEMPLATE_TOKENS = 5  # what the chat template puts around a message


@dataclass(frozen=True, slots=True)
class Mix:
    """How much of what. Lengths are in words, each of which is one token of the default model."""

    conversations: int = 100
    scans: int = 12
    systems: int = 4
    system_words: int = 300
    message_words: tuple[int, int] = (40, 240)
    scan_words: tuple[int, int] = (700, 1300)
    answer_tokens: int = 12
    minutes: float = 10.0  # of the trace's time, in which the conversations begin


@dataclass(frozen=True, slots=True)
class Turn:
    """One user message, due at a second of the trace's time; `turn` from 1."""

    due: float
    conversation: int
    turn: int
    system: str
    message: str


def schedule(mix: Mix, habits: Habits, seed: int) -> list[Turn]:
    """In the order in which they are due. The same seed, mix and habits give the same texts at the same times."""
    rng = random.Random(seed)
    systems = [words(mix.system_words, rng.getrandbits(32)) for _ in range(mix.systems)]
    turns = [turn for number in range(mix.conversations) for turn in converse(rng, mix, habits, number, systems)]
    scans = [scan(rng, mix, mix.conversations + number, systems) for number in range(mix.scans)]
    return sorted([*turns, *scans], key=lambda turn: (turn.due, turn.conversation))


def converse(rng: random.Random, mix: Mix, habits: Habits, number: int, systems: Sequence[str]) -> Iterator[Turn]:
    """Turns and the times between them as somebody in the trace had them."""
    due, system = rng.uniform(0, 60 * mix.minutes), pick(rng, systems)
    for turn in range(1, rng.choice(habits.turns) + 1):
        yield Turn(due, number, turn, system, words(rng.randint(*mix.message_words), rng.getrandbits(32)))
        due += rng.choice(habits.gaps)


def scan(rng: random.Random, mix: Mix, number: int, systems: Sequence[str]) -> Turn:
    """A long document that nobody asks about again."""
    text = words(rng.randint(*mix.scan_words), rng.getrandbits(32))
    return Turn(rng.uniform(0, 60 * mix.minutes), number, 1, pick(rng, systems), text)


def pick(rng: random.Random, systems: Sequence[str]) -> str:
    """By Zipf's law: the second is half as popular as the first, and so on."""
    return rng.choices(systems, [1 / rank for rank in range(1, len(systems) + 1)])[0]


def working_set(turns: Sequence[Turn], answer_tokens: int) -> int:
    """Different tokens in all of it, near enough to size a pool by."""
    systems = {turn.system for turn in turns}
    texts = [*systems, *(turn.message for turn in turns)]
    tokens = sum(len(text.split()) + TEMPLATE_TOKENS for text in texts)
    return tokens + len(turns) * (answer_tokens + TEMPLATE_TOKENS)


def longest_chat(turns: Sequence[Turn], answer_tokens: int) -> int:
    """Tokens of the longest conversation at its end: a pool has to hold that much."""
    chats: dict[int, int] = {}
    for turn in turns:
        start = chats.setdefault(turn.conversation, len(turn.system.split()) + TEMPLATE_TOKENS)
        said = len(turn.message.split()) + answer_tokens + 2 * TEMPLATE_TOKENS
        chats[turn.conversation] = start + said
    return max(chats.values())
