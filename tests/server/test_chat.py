from tests.fakes import expected_output
from tests.server.serving import MESSAGES, SHAPE, check_error, events, site
from tests.tiny_tokenizer import tiny_tokenizer

PROMPT = tiny_tokenizer().render_chat(MESSAGES)


def expected_text(num_tokens: int) -> str:
    return tiny_tokenizer().decode(expected_output(PROMPT, num_tokens, 256))


async def test_answer_has_the_shape_of_the_contract() -> None:
    async with site() as server:
        response = await server.chat()
        answer = response.json()
        assert response.status_code == 200
        assert answer["id"].startswith("chatcmpl-") and len(answer["id"]) == 41
        assert answer["object"] == "chat.completion"
        assert (answer["model"], answer["system_fingerprint"]) == ("fake", "fp_0123456789")
        message = {"role": "assistant", "content": expected_text(8), "refusal": None}
        assert answer["choices"] == [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": "length", "stop_reason": None}
        ]
        assert answer["usage"] == {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": 8,
            "total_tokens": len(PROMPT) + 8,
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": len(PROMPT)},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }
        assert response.headers["x-openai-kv-cache-hit-tokens"] == "0"
        assert response.headers["x-content-type-options"] == "nosniff"
        assert int(response.headers["openai-processing-ms"]) >= 0
        await server.settle()


async def test_second_time_everything_is_cached_and_the_answer_is_the_same() -> None:
    async with site() as server:
        first, second = (await server.chat()).json(), await server.chat()
        details = second.json()["usage"]["prompt_tokens_details"]
        assert details == {"cached_tokens": len(PROMPT), "cache_write_tokens": 0}
        assert second.headers["x-openai-kv-cache-hit-tokens"] == str(len(PROMPT))
        assert second.json()["choices"] == first["choices"]


async def test_stream_concatenates_to_the_answer() -> None:
    async with site() as server:
        whole = (await server.chat()).json()
        response = await server.chat(stream=True, stream_options={"include_usage": True})
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache"
        assert response.headers["x-accel-buffering"] == "no"
        assert response.headers["x-openai-kv-cache-hit-tokens"] == str(len(PROMPT))
        assert "\r" not in response.text
        *chunks, last, done = events(response.text)
        assert done == "[DONE]"
        assert last["choices"] == [] and last["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT)
        assert all(chunk["usage"] is None and len(chunk["choices"]) == 1 for chunk in chunks)
        assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
        choices = [chunk["choices"][0] for chunk in chunks]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert all(choice["delta"]["content"] for choice in choices[1:-1])
        assert choices[-1]["delta"] == {}
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        text = "".join(choice["delta"].get("content", "") for choice in choices)
        assert text == whole["choices"][0]["message"]["content"]
        await server.settle()


async def test_continuous_usage_counts_up() -> None:
    async with site() as server:
        response = await server.chat(stream=True, stream_options={"continuous_usage_stats": True})
        *chunks, _ = events(response.text)
        counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert counts == sorted(counts) and counts[-1] == 8
        assert all(chunk["choices"] for chunk in chunks)


async def test_stop_string_ends_the_answer_before_it() -> None:
    async with site() as server:
        text = (await server.chat()).json()["choices"][0]["message"]["content"]
        stop = text[3:5]
        choice = (await server.chat(stop=[stop, "never"])).json()["choices"][0]
        assert choice["message"]["content"] == text[: text.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


async def test_without_a_maximum_the_rest_of_the_context_is_used_or_the_configured_cap() -> None:
    body = {"model": "fake", "messages": MESSAGES, "temperature": 0}
    async with site() as server:
        usage = (await server.post("/v1/chat/completions", body)).json()["usage"]
        assert usage["total_tokens"] == SHAPE.max_model_len
    async with site(server__default_max_tokens=5) as server:
        usage = (await server.post("/v1/chat/completions", body)).json()["usage"]
        assert usage["completion_tokens"] == 5
        assert (await server.chat(max_tokens=7)).json()["usage"]["completion_tokens"] == 7


async def test_messages_of_all_roles_and_parts_reach_the_template() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "own_key": 1},
        {"role": "user", "content": "go on"},
    ]
    rendered = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": ""},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "no"},
        {"role": "user", "content": "go on"},
    ]
    async with site() as server:
        answer = await server.chat(messages=messages)
        assert answer.json()["usage"]["prompt_tokens"] == len(tiny_tokenizer().render_chat(rendered))


async def test_arguments_of_a_tool_call_are_an_object_only_if_a_body_could_hold_it() -> None:
    template = "{% for message in messages %}{{ message.tool_calls[0].function.arguments is mapping }}{% endfor %}"
    async with site(tokenizer=tiny_tokenizer(template)) as server:
        for arguments, is_object in (
            ('{"a": 1}', True),
            ("[1]", False),
            ("[" * 100_000, False),
            ('{"a":' * 70 + "1" + "}" * 70, False),
            ('{"a": "\\ud800"}', False),
        ):
            function = {"name": "f", "arguments": arguments}
            message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]}
            answer = await server.chat(messages=[message])
            assert answer.json()["usage"]["prompt_tokens"] == len(str(is_object)), arguments[:20]


async def test_template_kwargs_are_variables_of_the_template() -> None:
    template = "{{ greeting }}{% for message in messages %}{{ message.content }}{% endfor %}"
    async with site(tokenizer=tiny_tokenizer(template)) as server:
        answer = await server.chat(chat_template_kwargs={"greeting": "hello "})
        assert answer.json()["usage"]["prompt_tokens"] == len("hello What is a cache?")
        refused = await server.chat(chat_template_kwargs={"tools": []})
        check_error(refused, 400, "invalid_value", "chat_template_kwargs.tools")


async def test_template_that_refuses_and_no_template_at_all() -> None:
    async with site(tokenizer=tiny_tokenizer("{{ raise_exception('roles must alternate') }}")) as server:
        error = check_error(await server.chat(), 400, "template_error", "messages")
        assert "roles must alternate" in error["message"]
    async with site(tokenizer=tiny_tokenizer(None)) as server:
        check_error(await server.chat(), 400, "no_chat_template", "messages")


async def test_a_template_that_gives_no_token_leaves_nothing_to_answer() -> None:
    async with site(tokenizer=tiny_tokenizer("{{ '' }}")) as server:
        check_error(await server.chat(), 400, "invalid_value", "messages")
        refused = await server.post("/generate", {"messages": MESSAGES})
        check_error(refused, 400, "invalid_value", "messages")
        assert (await server.post("/generate", {"prompt": "still there"})).status_code == 200


async def test_service_tier_is_answered() -> None:
    async with site() as server:
        assert (await server.chat(service_tier="flex")).json()["service_tier"] == "default"
        assert "service_tier" not in (await server.chat()).json()


async def test_prompt_longer_than_the_context() -> None:
    async with site() as server:
        long = [{"role": "user", "content": "x" * 600}]
        error = check_error(await server.chat(messages=long), 400, "context_length_exceeded", "messages")
        tokens = len(tiny_tokenizer().render_chat(long))
        assert error["message"] == (
            f"This model's maximum context length is 512 tokens, but the request needs {tokens + 8}: "
            f"{tokens} in the prompt and 8 for the output."
        )
        check_error(await server.chat(max_tokens=512), 400, "context_length_exceeded", "messages")
        check_error(await server.chat(stream=True, max_tokens=512), 400, "context_length_exceeded", "messages")


async def test_hints_and_salts_decide_what_is_shared() -> None:
    async def cached(**changes: object) -> int:
        answer = (await server.chat(**changes)).json()
        count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    async with site() as server:
        assert await cached(session_id="a") == 0
        assert await cached(session_id="b", prompt_cache_key="k") == len(PROMPT)
        assert await cached(cache_salt="pepper") == 0
        assert await cached(cache_salt="pepper") == len(PROMPT)
        assert await cached(cache_salt="other") == 0
