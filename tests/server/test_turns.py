"""What chats tokenize: of an earlier turn nothing again, and nothing is shared between keys."""

import pytest

from tests.server.serving import MESSAGES, Site, site
from tests.tiny_tokenizer import CountingTokenizer

FIRST = "<|im_start|>user\nWhat is a cache?<|im_end|>\n<|im_start|>assistant\n"
SECOND = [*MESSAGES, {"role": "assistant", "content": "It keeps."}, {"role": "user", "content": "Why?"}]


async def tokenized(server: Site, tokenizer: CountingTokenizer, path: str, key: str = "alice", **body: object) -> str:
    tokenizer.taken()
    asked = {"model": "fake", "messages": MESSAGES, **body}
    response = await server.post(path, asked, authorization=f"Bearer {key}")
    assert response.status_code == 200, response.text
    return tokenizer.taken()


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "alice, bob")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate", "/tokenize"])
async def test_a_second_turn_tokenizes_only_what_is_new(path: str) -> None:
    tokenizer = CountingTokenizer()
    async with site(tokenizer=tokenizer) as server:
        assert await tokenized(server, tokenizer, path) == FIRST
        assert await tokenized(server, tokenizer, path) == ""
        new = await tokenized(server, tokenizer, path, messages=SECOND)
        assert new == "<|im_start|>assistant\nIt keeps.<|im_start|>user\nWhy?"


async def test_nobody_is_faster_for_what_another_key_or_salt_has_sent() -> None:
    tokenizer, path = CountingTokenizer(), "/v1/chat/completions"
    async with site(tokenizer=tokenizer) as server:
        assert await tokenized(server, tokenizer, path, "alice") == FIRST
        assert await tokenized(server, tokenizer, path, "bob") == FIRST
        assert await tokenized(server, tokenizer, path, "alice", cache_salt="x") == FIRST
        assert await tokenized(server, tokenizer, path, "alice") == ""
