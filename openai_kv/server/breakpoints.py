"""Where a prompt's cache breakpoints lie in its tokens, whatever the chat template makes of the messages."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai_kv.errors import TemplateError
from openai_kv.server.fields import Mark
from openai_kv.server.prompts import chat_text, render_messages, template_text
from openai_kv.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Place:
    """Of a mark: the number of leading tokens before it; None: the template leaves it out."""

    mark: Mark
    num_tokens: int | None


@dataclass(frozen=True, slots=True)
class MarkedPrompt:
    token_ids: list[int]
    places: tuple[Place, ...] = ()


def render_marked(tokenizer: Tokenizer, body: Mapping[str, Any], marks: Sequence[Mark], namespace: str) -> MarkedPrompt:
    """The chat template over `body`'s messages, with the places of `marks`; raises TemplateError."""
    if not marks:
        return MarkedPrompt(render_messages(tokenizer, body, namespace))
    text = chat_text(tokenizer, body)
    places = locate(tokenizer, body, marks, text)
    token_ids, counts = tokenizer.encode_to(text, [place for place in places if place is not None], namespace)
    known = iter(counts)
    ends = (None if place is None else next(known) for place in places)
    return MarkedPrompt(token_ids, tuple(map(Place, marks, ends)))


def locate(tokenizer: Tokenizer, body: Mapping[str, Any], marks: Sequence[Mark], text: str) -> list[int | None]:
    """For each mark the number of characters of `text` before it.

    The messages are rendered once more with a seal at each mark. What stands before a seal and is the same in `text`
    lies before the mark: so white space that the template trims at the end of a part does not count.
    """
    seals = [draw_seal(text) for _ in marks]
    try:
        sealed = template_text(tokenizer, {**body, "messages": seal_messages(body["messages"], marks, seals)})
    except TemplateError:
        return [None] * len(marks)
    return [place_of(seal, sealed, seals, text) for seal in seals]


def draw_seal(text: str) -> str:
    """Digits, which no filter of a template changes, and which `text` does not have."""
    seal = f"{secrets.randbelow(10**24):024d}"
    return seal if seal not in text else draw_seal(text)


def seal_messages(
    messages: Sequence[Mapping[str, Any]], marks: Sequence[Mark], seals: Sequence[str]
) -> list[Mapping[str, Any]]:
    sealed = list(messages)
    for mark, seal in sorted(zip(marks, seals, strict=True), key=lambda pair: -pair[0].end):  # so that ends stay right
        content = sealed[mark.message]["content"]
        sealed[mark.message] = {**sealed[mark.message], "content": content[: mark.end] + seal + content[mark.end :]}
    return sealed


def place_of(seal: str, sealed: str, seals: Sequence[str], text: str) -> int | None:
    before, found, _ = sealed.partition(seal)
    for other in seals:
        before = before.replace(other, "")
    return shared_length(before, text) if found else None


def shared_length(one: str, other: str) -> int:
    """Number of leading characters that are equal."""
    if other.startswith(one):
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (left, right) in pairs if left != right), len(other))
