"""Several tokens may come in one chunk; what a client gets in all is the same."""

from typing import Any

import pytest

from tests.fakes import stutter
from tests.harness import fake_runner
from tests.server.serving import SHAPE, events, site

BODY: dict[str, Any] = {"model": "fake", "prompt": "abcabcabd", "max_tokens": 40, "temperature": 0, "logprobs": 1}


async def answers(speculation: str) -> tuple[Any, list[Any], int]:
    """The answer, the chunks of a stream, and the steps that both took."""
    runner = fake_runner(SHAPE)
    runner.model = stutter
    async with site(runner=runner, engine__speculation=speculation) as server:
        whole = (await server.post("/v1/completions", BODY)).json()
        options = {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
        *chunks, done = events((await server.post("/v1/completions", {**BODY, **options})).text)
        assert done == "[DONE]"
        return whole, chunks, len(runner.rows)


@pytest.mark.parametrize("speculation", ["ngram", "auto"])
async def test_answers_streams_and_usage(speculation: str) -> None:
    (plain, _, plain_steps), (whole, chunks, steps) = await answers("off"), await answers(speculation)
    assert steps < plain_steps
    assert whole["choices"] == plain["choices"]
    assert whole["usage"] == plain["usage"]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert max(len(choice["token_ids"]) for choice in choices) > 1
    assert sum(len(choice["token_ids"]) for choice in choices) == 40
    tokens = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    assert tokens == whole["choices"][0]["logprobs"]["tokens"]
    assert chunks[-1]["usage"]["completion_tokens"] == 40
    assert chunks[-1]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
