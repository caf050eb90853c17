"""Another model name in a JSON object whose every other byte stays."""

import json
import re
from collections.abc import Iterator

DECODER = json.JSONDecoder()
SPACE = re.compile(r"[ \t\n\r]*")


def with_model(body: bytes, name: str) -> bytes:
    """`body` is a JSON object; a key that is there twice is replaced twice, whichever of them counts."""
    text = body.decode()
    pieces, done = list[str](), 0
    for start, end in spans(text, "model"):
        pieces += [text[done:start], json.dumps(name)]
        done = end
    return "".join([*pieces, text[done:]]).encode()


def spans(text: str, wanted: str) -> Iterator[tuple[int, int]]:
    """Where the values of a top-level key begin and end."""
    position = skip(text, text.index("{") + 1)
    while text.startswith('"', position):
        name, colon = DECODER.raw_decode(text, position)
        start = skip(text, skip(text, colon) + 1)
        _, end = DECODER.raw_decode(text, start)
        if name == wanted:
            yield start, end
        position = skip(text, skip(text, end) + 1)


def skip(text: str, position: int) -> int:
    """Past white space."""
    match = SPACE.match(text, position)
    assert match is not None
    return match.end()
