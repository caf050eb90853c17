"""What is asked: workloads as plain data, made before the clock starts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from openai_kv.bench.writer import Writer

QUESTION_WORDS = 20
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Conversation:
    """User messages sent one after the other, each with the whole history and the server's own answers."""

    system: str
    questions: tuple[str, ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Phase:
    """Conversations of which `concurrency` run at a time; a row of the report. Phases follow one another."""

    label: str
    conversations: tuple[Conversation, ...]
    concurrency: int

    @property
    def num_requests(self) -> int:
        return sum(len(conversation.questions) for conversation in self.conversations)


@dataclass(frozen=True, slots=True)
class Scale:
    """`concurrency` requests at once; `prefix_words` of shared system prompt; `documents` for cache pressure."""

    concurrency: int = 8
    prefix_words: int = 1400
    documents: int = 32


Workload = Callable[[Writer, Scale], Iterator[Phase]]


def single(writer: Writer, scale: Scale) -> Iterator[Phase]:  # noqa: ARG001
    """One request after the other: the speed that one user sees."""
    yield Phase("single", tuple(_ask(writer, "", 100, 128, "single", index) for index in range(3)), 1)


def batch(writer: Writer, scale: Scale) -> Iterator[Phase]:
    """Unrelated requests at once: throughput without any help from the cache."""
    number = scale.concurrency
    yield Phase(f"batch {number}", tuple(_ask(writer, "", 200, 64, "batch", index) for index in range(number)), number)


def prefix(writer: Writer, scale: Scale) -> Iterator[Phase]:
    """A long system prompt: new, known, with a question that is known too, and many new questions at once."""
    system = writer.words(scale.prefix_words, "prefix")
    ask = partial(_ask, writer, system, QUESTION_WORDS)
    yield Phase("prefix cold", (ask(4, "prefix", 0),), 1)
    yield Phase("prefix warm", (ask(4, "prefix", 1), ask(4, "prefix", 2)), 1)
    yield Phase("prefix repeat", (ask(4, "prefix", 2), ask(4, "prefix", 2)), 1)
    number = 2 * scale.concurrency
    yield Phase(f"prefix x{number}", tuple(ask(32, "shared", index) for index in range(number)), number)


def herd(writer: Writer, scale: Scale) -> Iterator[Phase]:
    """Many questions at once behind a system prompt that is new: is it computed once?"""
    system, number = writer.words(scale.prefix_words, "herd"), 2 * scale.concurrency
    asked = tuple(_ask(writer, system, QUESTION_WORDS, 32, "herd", index) for index in range(number))
    yield Phase(f"herd of {number}", asked, number)


def turns(writer: Writer, scale: Scale) -> Iterator[Phase]:
    """Conversations of five turns at once."""
    number = scale.concurrency
    yield Phase(f"turns of {number}", tuple(_talk(writer, "turns", index, 5) for index in range(number)), number)


def pressure(writer: Writer, scale: Scale) -> Iterator[Phase]:
    """More documents than the cache may hold, each asked about again when all the others had their turn."""
    documents = [writer.words(300, "document", index) for index in range(scale.documents)]
    for turn in range(ROUNDS):
        asked = tuple(_ask(writer, document, QUESTION_WORDS, 8, "pressure", turn) for document in documents)
        yield Phase(f"pressure {turn + 1} of {ROUNDS}", asked, scale.concurrency)


WORKLOADS: Mapping[str, Workload] = {
    workload.__name__: workload for workload in (single, batch, prefix, herd, turns, pressure)
}


def _ask(writer: Writer, system: str, words: int, max_tokens: int, *key: object) -> Conversation:
    return Conversation(system, (writer.words(words, *key),), max_tokens)


def _talk(writer: Writer, name: str, index: int, number: int) -> Conversation:
    questions = (writer.words(QUESTION_WORDS, name, index, turn) for turn in range(number))
    return Conversation(writer.words(100, name, index), tuple(questions), 48)
