"""Log probabilities as clients get them: chat, completions with and without echo, the native endpoint, streams."""

from typing import Any

import pytest

from openai_kv.token_bytes import bytes_as_text
from tests.fakes import expected_output, fake_logprobs
from tests.server.serving import MESSAGES, SHAPE, Site, check_error, events, site
from tests.tiny_tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
IDS = TOKENIZER.encode("Once upón a time")
PROMPT = TOKENIZER.render_chat(MESSAGES)
EVAL = {"model": "fake", "max_tokens": 1, "logprobs": 1, "echo": True, "temperature": 0, "seed": 1234}


def text_of(token: int) -> str:
    return bytes_as_text(TOKENIZER.token_bytes(token) or b"")


def chat_entries(prompt: list[int], num_tokens: int, count: int) -> list[dict[str, Any]]:
    """What the fake model's answer has to look like."""

    def token(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": text_of(token_id),
            "logprob": logprob,
            "bytes": list(TOKENIZER.token_bytes(token_id) or b""),
        }

    entries = []
    output = expected_output(prompt, num_tokens, 256)
    for index, token_id in enumerate(output):
        entry = fake_logprobs([*prompt, *output[:index]], token_id, count, 256)
        top = [token(*pair) for pair in entry.top]
        entries.append({**token(token_id, entry.logprob), "top_logprobs": top})
    return entries


async def complete(server: Site, **body: Any) -> Any:
    response = await server.post("/v1/completions", {"model": "fake", "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def test_chat_has_one_entry_a_token() -> None:
    async with site() as server:
        answer = (await server.chat(logprobs=True, top_logprobs=3)).json()
        assert answer["choices"][0]["logprobs"] == {"content": chat_entries(PROMPT, 8, 3), "refusal": None}
        bare = (await server.chat(logprobs=True)).json()["choices"][0]["logprobs"]
        assert bare["content"] == chat_entries(PROMPT, 8, 0)
        assert (await server.chat(logprobs=False)).json()["choices"][0]["logprobs"] is None
        await server.settle()


@pytest.mark.parametrize("stop", [[], [bytes([7]).decode()]])
async def test_chat_stream_concatenates_to_the_answer(stop: list[str]) -> None:
    asked = {"logprobs": True, "top_logprobs": 2, "return_token_ids": True, "stop": stop, "max_tokens": 30}
    async with site() as server:
        whole = (await server.chat(**asked)).json()
        *chunks, _ = events((await server.chat(**asked, stream=True)).text)
        choices = [chunk["choices"][0] for chunk in chunks]
        content = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        assert content == whole["choices"][0]["logprobs"]["content"]
        token_ids = [token for choice in choices for token in choice["token_ids"]]
        assert token_ids == whole["choices"][0]["token_ids"]
        assert whole["usage"]["completion_tokens"] == len(content) == len(token_ids)
        assert [chunk.get("prompt_token_ids") for chunk in chunks] == [PROMPT, *[None] * (len(chunks) - 1)]
        assert whole["prompt_token_ids"] == PROMPT


async def test_log_probabilities_travel_with_the_text_of_their_tokens() -> None:
    """A chunk's text is the text of its tokens, held-back beginnings of a stop string and of characters included."""
    prompt = TOKENIZER.encode("x")
    output = expected_output(prompt, 60, 256)
    text = TOKENIZER.decode(output)
    stop = text[20] + "never"
    async with site() as server:
        body = {"model": "fake", "prompt": prompt, "max_tokens": 60, "logprobs": 0, "stop": [stop], "stream": True}
        *chunks, _ = events((await server.post("/v1/completions", body)).text)
        done = 0
        for choice in (chunk["choices"][0] for chunk in chunks):
            logprobs = choice["logprobs"]
            count = len(logprobs["tokens"]) if logprobs else 0
            if choice["finish_reason"] is None:
                assert TOKENIZER.decode(output[: done + count]).removesuffix("\ufffd").endswith(choice["text"][-3:])
            done += count
        assert done == 60


async def test_completions_without_echo() -> None:
    async with site() as server:
        choice = (await complete(server, prompt=IDS, max_tokens=5, logprobs=2))["choices"][0]
        entries = chat_entries(IDS, 5, 2)
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == [entry["token"] for entry in entries]
        assert logprobs["token_logprobs"] == [entry["logprob"] for entry in entries]
        assert logprobs["top_logprobs"] == [
            {top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries
        ]
        assert logprobs["text_offset"][0] == 0
        assert (await complete(server, prompt=IDS, max_tokens=5))["choices"][0]["logprobs"] is None
        assert (await complete(server, prompt=IDS, max_tokens=0, logprobs=1))["choices"][0]["logprobs"] == {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }


async def test_the_token_itself_is_always_among_the_most_likely() -> None:
    """In the prompt it is usually not; log probabilities fall along each object."""
    async with site() as server:
        for count in (0, 3):
            choice = (await complete(server, prompt=IDS, max_tokens=2, logprobs=count, echo=True))["choices"][0]
            logprobs = choice["logprobs"]
            for token, logprob, top in list(zip(*[logprobs[name] for name in list(logprobs)[:3]], strict=True))[1:]:
                assert top[token] == logprob
                assert len(top) in (max(count, 1), count + 1)
                assert list(top.values()) == sorted(top.values(), reverse=True)


async def test_the_request_of_lm_eval() -> None:
    prompts = [IDS, IDS[:5], IDS[:1], [1, *IDS]]
    async with site() as server:
        for max_tokens in (1, 0):
            answer = (
                await server.post("/v1/completions", {**EVAL, "prompt": prompts, "max_tokens": max_tokens})
            ).json()
            for choice, prompt in zip(answer["choices"], prompts, strict=True):
                logprobs = choice["logprobs"]
                assert {len(values) for values in logprobs.values()} == {len(prompt) + max_tokens}
                assert logprobs["token_logprobs"][0] is None is logprobs["top_logprobs"][0]
                output = expected_output(prompt, 1, 256)[:max_tokens]
                assert logprobs["tokens"] == [text_of(token) for token in [*prompt, *output]]
                pairs = zip(logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True)
                for index, (logprob, top) in enumerate(pairs, 1):
                    best = fake_logprobs([*prompt, *output][:index], [*prompt, *output][index], 0, 256).rank == 1
                    assert (logprob == max(top.values())) == best
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        again = await complete(server, prompt=IDS)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len(IDS), "it writes to the cache"
        await server.settle()


async def test_echo_repeats_the_prompt_as_it_was_given() -> None:
    text = "é <|im_start|> ü"
    async with site() as server:
        plain = (await complete(server, prompt=text, max_tokens=3))["choices"][0]
        echoed = (await complete(server, prompt=text, max_tokens=3, echo=True))["choices"][0]
        assert echoed["text"] == text + plain["text"] and echoed["logprobs"] is None
        assert (await complete(server, prompt=text, max_tokens=0, echo=True))["choices"][0]["text"] == text
        of_ids = await complete(server, prompt=IDS, max_tokens=0, echo=True)
        assert of_ids["choices"][0]["text"] == "Once upón a time"
        nothing = await complete(server, max_tokens=0, echo=True, logprobs=0)
        assert nothing["choices"][0]["text"] == ""
        assert nothing["choices"][0]["logprobs"]["text_offset"] == [0]
        stopped = await complete(server, prompt="END", max_tokens=3, echo=True, stop="END")
        assert stopped["choices"][0]["text"].startswith("END"), "a stop string is not looked for in the prompt"


@pytest.mark.parametrize("prompt", ["né <|im_end|> 🎉!", TOKENIZER.encode("né 🎉!")])
async def test_offsets_count_the_characters_before_each_token(prompt: str | list[int]) -> None:
    async with site() as server:
        choice = (await complete(server, prompt=prompt, max_tokens=40, echo=True, logprobs=0))["choices"][0]
        ids = TOKENIZER.encode(prompt) if isinstance(prompt, str) else prompt
        skip = not isinstance(prompt, str)
        decoded = TOKENIZER.decode(ids, skip_special_tokens=skip)
        assert choice["text"].startswith(decoded)
        expected = [
            len(TOKENIZER.decode(ids[:index], skip_special_tokens=skip).rstrip("\ufffd")) for index in range(len(ids))
        ]
        offsets = choice["logprobs"]["text_offset"]
        assert offsets[: len(ids)] == expected
        assert offsets[len(ids)] == len(decoded)
        assert offsets == sorted(offsets) and offsets[-1] <= len(choice["text"])


async def test_echo_in_a_stream_comes_with_the_first_chunk_of_each_choice() -> None:
    body = {**EVAL, "prompt": [IDS, IDS[:4]], "n": 2, "max_tokens": 6}
    async with site() as server:
        whole = (await server.post("/v1/completions", body)).json()
        for _ in range(2):  # cold, and with all prompts in the cache
            *chunks, _ = events((await server.post("/v1/completions", {**body, "stream": True})).text)
            for expected in whole["choices"]:
                choices = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == expected["index"]]
                assert "".join(choice["text"] for choice in choices) == expected["text"]
                assert len(choices[0]["logprobs"]["tokens"]) >= len(IDS[:4])
                for name, values in expected["logprobs"].items():
                    assert [value for c in choices if c["logprobs"] for value in c["logprobs"][name]] == values
        await server.settle()


async def test_prompt_logprobs() -> None:
    entry = fake_logprobs(IDS[:1], IDS[1], 2, 256)
    second = {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": text_of(token)}
        for token, logprob, rank in (
            (entry.top[0][0], entry.top[0][1], 1),
            (entry.top[1][0], entry.top[1][1], 2),
            (IDS[1], entry.logprob, entry.rank),
        )
    }
    async with site() as server:
        choice = (await complete(server, prompt=IDS, max_tokens=1, prompt_logprobs=2))["choices"][0]
        assert choice["prompt_logprobs"][0] is None and choice["logprobs"] is None
        assert list(choice["prompt_logprobs"][1].items()) == list(second.items())
        assert len(choice["prompt_logprobs"]) == len(IDS)
        chat = (await server.chat(prompt_logprobs=0)).json()
        assert [len(item or ()) for item in chat["prompt_logprobs"]] == [0, *[1] * (len(PROMPT) - 1)]
        native = (await server.post("/generate", {"prompt_token_ids": IDS, "prompt_logprobs": 2})).json()
        assert native["prompt_logprobs"] == choice["prompt_logprobs"]
        both = await complete(server, prompt=IDS, max_tokens=1, prompt_logprobs=2, echo=True, logprobs=4, n=2)
        for answer in both["choices"]:
            assert answer["prompt_logprobs"] == choice["prompt_logprobs"]
            assert max(map(len, answer["logprobs"]["top_logprobs"][1:])) in (4, 5)
        single = await complete(server, prompt=IDS[:1], prompt_logprobs=2, max_tokens=1)
        assert single["choices"][0]["prompt_logprobs"] == [None]


async def test_the_native_endpoint_adds_token_ids() -> None:
    body = {"prompt_token_ids": IDS, "max_tokens": 5, "temperature": 0, "logprobs": 2}
    async with site() as server:
        whole = (await server.post("/generate", body)).json()
        entries = chat_entries(IDS, 5, 2)
        assert [entry.pop("token_id") for entry in whole["logprobs"]] == whole["token_ids"]
        tops = [top.pop("token_id") for entry in whole["logprobs"] for top in entry["top_logprobs"]]
        assert tops[::2] == whole["token_ids"]
        assert whole["logprobs"] == entries
        *pieces, last, _ = events((await server.post("/generate", {**body, "stream": True})).text)
        told = [entry for piece in pieces for entry in piece["logprobs"]]
        assert told == last["logprobs"] and len(told) == 5
        check_error(
            await server.post("/generate", {**body, "logprobs": 21}), 400, "integer_above_max_value", "logprobs"
        )


async def test_long_prompts_are_reported_whole_over_many_steps() -> None:
    prompt = [index % 250 for index in range(400)]
    async with site(SHAPE, server__max_logprobs=5) as server:
        choice = (await complete(server, prompt=prompt, max_tokens=2, echo=True, logprobs=5))["choices"][0]
        assert len(choice["logprobs"]["tokens"]) == 402
        check_error(
            await server.post("/v1/completions", {"model": "fake", "prompt": "x", "logprobs": 6}),
            400,
            "integer_above_max_value",
            "logprobs",
        )
