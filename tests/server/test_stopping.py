"""How answers end and begin: stop tokens, what is shown of them, continued messages, templates without their prompt."""

from typing import Any

from tests.fakes import expected_output
from tests.server.serving import MESSAGES, check_error, events, site
from tests.tiny_tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PROMPT = TOKENIZER.render_chat(MESSAGES)
OUTPUT = expected_output(PROMPT, 8, 256)
BEGUN = [*MESSAGES, {"role": "assistant", "content": "A cache is"}]


async def test_a_stop_token_ends_the_answer_and_counts() -> None:
    async with site() as server:
        asked: dict[str, Any] = {"stop_token_ids": [OUTPUT[4], 3], "logprobs": True, "return_token_ids": True}
        answer = (await server.chat(**asked)).json()
        (choice,) = answer["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", OUTPUT[4])
        assert choice["message"]["content"] == TOKENIZER.decode(OUTPUT[:4])
        assert answer["usage"]["completion_tokens"] == 5
        assert choice["token_ids"] == OUTPUT[:5]
        assert len(choice["logprobs"]["content"]) == 5
        kept = (await server.chat(**asked, include_stop_str_in_output=True)).json()["choices"][0]
        assert kept["message"]["content"] == TOKENIZER.decode(OUTPUT[:5])
        assert kept["stop_reason"] == OUTPUT[4]
        *chunks, _ = events((await server.chat(**asked, stream=True)).text)
        choices = [chunk["choices"][0] for chunk in chunks]
        assert "".join(c["delta"].get("content", "") for c in choices) == choice["message"]["content"]
        assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", OUTPUT[4])
        assert [token for c in choices for token in c["token_ids"]] == OUTPUT[:5]


async def test_a_stop_string_is_kept_on_request() -> None:
    text = TOKENIZER.decode(OUTPUT)
    async with site() as server:
        stop = text[3:5]
        asked = {"stop": stop, "include_stop_str_in_output": True}
        choice = (await server.chat(**asked)).json()["choices"][0]
        assert choice["message"]["content"] == text[: text.index(stop) + 2]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        *chunks, _ = events((await server.chat(**asked, stream=True)).text)
        streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert streamed == choice["message"]["content"]


async def test_a_final_message_is_continued() -> None:
    expected = TOKENIZER.render_chat(BEGUN, add_generation_prompt=False, continue_final_message=True)
    assert TOKENIZER.decode(expected).endswith("A cache is")
    async with site() as server:
        answer = (await server.chat(messages=BEGUN, continue_final_message=True)).json()
        assert answer["usage"]["prompt_tokens"] == len(expected)
        text = TOKENIZER.decode(expected_output(expected, 8, 256))
        assert answer["choices"][0]["message"]["content"] == text, "only what is new"
        body = {"messages": BEGUN, "continue_final_message": True, "add_generation_prompt": False, "max_tokens": 1}
        assert (await server.post("/generate", body)).json()["prompt_token_ids"] == expected


async def test_a_template_without_its_generation_prompt() -> None:
    bare = TOKENIZER.render_chat(MESSAGES, add_generation_prompt=False)
    async with site() as server:
        answer = await server.chat(add_generation_prompt=False, return_token_ids=True)
        assert answer.json()["prompt_token_ids"] == bare
        body = {"messages": MESSAGES, "add_generation_prompt": False, "max_tokens": 1}
        assert (await server.post("/generate", body)).json()["prompt_token_ids"] == bare


async def test_options_that_do_not_go_with_the_kind_of_prompt() -> None:
    async with site() as server:
        for name in ("add_generation_prompt", "continue_final_message"):
            response = await server.post("/generate", {"prompt": "a", name: False})
            check_error(response, 400, "invalid_parameter_combination", name)
        refused = await server.post("/generate", {"messages": MESSAGES, "add_special_tokens": True})
        check_error(refused, 400, "unsupported_parameter", "add_special_tokens")
        body = {"messages": MESSAGES, "add_special_tokens": False, "max_tokens": 1}
        assert (await server.post("/generate", body)).json()["prompt_token_ids"] == PROMPT


async def test_null_inside_an_option_object_is_as_good_as_nothing() -> None:
    nothing = {
        "response_format": {"type": "text", "json_schema": None},
        "prompt_cache_options": {"mode": None, "ttl": None},
        "stream_options": {"include_usage": None, "continuous_usage_stats": True},
    }
    async with site() as server:
        response = await server.chat(**nothing, stream=True)
        assert response.status_code == 200, response.text
        *chunks, _ = events(response.text)
        assert all(chunk["usage"] for chunk in chunks)
