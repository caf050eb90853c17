"""Pieces of llguidance's Lark dialect; a grammar is a text of rules that begins at `start`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_SPACES = 20
SPACE = rf"/[ \n\r\t]{{0,{MAX_SPACES}}}/"
ANYTHING = r"/(.|\n)*/"
# No \u and no \/: a key in another spelling is the same key to whoever parses it, but not to the grammar.
JSON_OPTIONS = {"whitespace_pattern": rf"[\x20\x0A\x0D\x09]{{1,{MAX_SPACES}}}", "json_allowed_escapes": 'bfnrt"\\'}
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Lark:
    """Literals of one tokenizer: a special token can't be written with the letters of its text."""

    special_ids: Mapping[str, int]

    def text(self, text: str) -> str:
        token_id = self.special_ids.get(text)
        return json.dumps(text, ensure_ascii=False) if token_id is None else f"<[{token_id}]>"

    def is_special(self, text: str) -> bool:
        return text in self.special_ids


def json_of(schema: Mapping[str, Any] | bool) -> str:
    """JSON text that satisfies `schema`, without white space around it."""
    if not isinstance(schema, Mapping):
        schema = {} if schema else {"not": {}}
    return f"%json {json.dumps({**schema, 'x-guidance': JSON_OPTIONS})}"


def rules(**bodies: str) -> str:
    """`name: body` lines."""
    return "".join(f"{name}: {body}\n" for name, body in bodies.items())
