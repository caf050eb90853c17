from tests.fakes import expected_output
from tests.server.serving import check_error, events, site
from tests.tiny_tokenizer import tiny_tokenizer

BODY = {"model": "fake", "prompt": "Once upon a time", "temperature": 0}


def text_of(prompt: list[int], num_tokens: int) -> str:
    return tiny_tokenizer().decode(expected_output(prompt, num_tokens, 256))


async def test_text_prompt() -> None:
    async with site() as server:
        answer = (await server.post("/v1/completions", BODY)).json()
        prompt = tiny_tokenizer().encode("Once upon a time")
        assert answer["id"].startswith("cmpl-") and answer["object"] == "text_completion"
        assert answer["choices"] == [
            {
                "index": 0,
                "text": text_of(prompt, 16),
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
            }
        ]
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        await server.settle()


async def test_several_prompts_are_choices_in_order_and_usage_is_summed() -> None:
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    async with site() as server:
        response = await server.post("/v1/completions", {**BODY, "prompt": prompts, "max_tokens": 4})
        answer = response.json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
        assert [choice["text"] for choice in answer["choices"]] == [text_of(prompt, 4) for prompt in prompts]
        assert answer["usage"]["prompt_tokens"] == 9 and answer["usage"]["completion_tokens"] == 12
        await server.settle()


async def test_stream_of_several_prompts_interleaves_by_index() -> None:
    prompts = ["first", "second prompt"]
    async with site() as server:
        body = {**BODY, "prompt": prompts, "stream": True, "stream_options": {"include_usage": True}}
        *chunks, usage, done = events((await server.post("/v1/completions", body)).text)
        assert done == "[DONE]" and usage["usage"]["completion_tokens"] == 32
        for index, prompt in enumerate(prompts):
            choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert "".join(choice["text"] for choice in choices) == text_of(tiny_tokenizer().encode(prompt), 16)
            assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        await server.settle()


async def test_prefill_only() -> None:
    async with site() as server:
        answer = (await server.post("/v1/completions", {**BODY, "max_tokens": 0})).json()
        assert (answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]) == ("", "length")
        again = (await server.post("/v1/completions", BODY)).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == len("Once upon a time")


async def test_no_prompt_is_the_default_prompt() -> None:
    async with site() as server:
        for body in ({"model": "fake"}, {"model": "fake", "prompt": ""}):
            answer = (await server.post("/v1/completions", body)).json()
            assert answer["usage"]["prompt_tokens"] == 1


async def test_prompts_of_the_wrong_kind() -> None:
    cases = [
        ([], "empty_array", "prompt"),
        ([[1], []], "empty_array", "prompt[1]"),
        (["a", 1], "invalid_type", "prompt[1]"),
        ([1, "a"], "invalid_type", "prompt[1]"),
        ([1, 256], "invalid_value", "prompt[1]"),
        ([[1], [True]], "invalid_type", "prompt[1][0]"),
        ({"text": "a"}, "invalid_type", "prompt"),
        (["a"] * 129, "array_above_max_length", "prompt"),
    ]
    async with site() as server:
        for prompt, code, param in cases:
            check_error(await server.post("/v1/completions", {**BODY, "prompt": prompt}), 400, code, param)
        long = {**BODY, "prompt": ["a", "b" * 600]}
        check_error(await server.post("/v1/completions", long), 400, "context_length_exceeded", "prompt")


async def test_a_float_without_a_fraction_is_an_integer() -> None:
    async with site() as server:
        answer = await server.post("/v1/completions", {**BODY, "prompt": [1.0, 2], "max_tokens": 2.0})
        assert answer.json()["usage"]["completion_tokens"] == 2
