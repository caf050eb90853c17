import json
from typing import Any

import pytest
from sse_starlette import ServerSentEvent

from openai_kv.server.envelope import encode
from openai_kv.server.streaming import event

PAYLOADS: list[dict[str, Any]] = [
    {"text": "two\nlines\r\nand\ra tab\t", "nested": {"none": None, "yes": True, "list": [1, -2.5, 0.1]}},
    {"text": "ü 字 🙂 \u2028 \x85 \x00 </script>"},
    {"number": 2**64 + 1, "text": "ü"},
    {"1": {2: "a key that is a number"}},
]


@pytest.mark.parametrize("payload", PAYLOADS)
def test_json_is_what_the_standard_library_writes(payload: dict[str, Any]) -> None:
    assert encode(payload).decode() == json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("name", [None, "response.created"])
@pytest.mark.parametrize("payload", PAYLOADS)
def test_an_event_is_framed_as_sse_starlette_does(payload: dict[str, Any], name: str | None) -> None:
    text = encode(payload).decode()
    assert event(payload, name) == ServerSentEvent(text, event=name, sep="\n").encode()
