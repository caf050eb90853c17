"""Every way a parameter can be wrong, as the client sees it."""

from typing import Any

import pytest

from tests.server.serving import CHAT, check_error, site

LONG = "x" * 100
USER = {"role": "user", "content": "hi"}
CHAT_CASES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"temperature": 3}, "decimal_above_max_value", "temperature", "must be at most 2; got 3."),
    ({"temperature": -0.5}, "decimal_below_min_value", "temperature", "must be at least 0; got -0.5."),
    ({"temperature": True}, "invalid_type", "temperature", "must be a number, not a boolean."),
    ({"temperature": "1"}, "invalid_type", "temperature", "must be a number, not a string."),
    ({"top_p": 1.5}, "decimal_above_max_value", "top_p", ""),
    ({"min_p": -1}, "decimal_below_min_value", "min_p", ""),
    ({"top_k": -2}, "integer_below_min_value", "top_k", "must be at least -1; got -2."),
    ({"top_k": 257}, "integer_above_max_value", "top_k", ""),
    ({"top_k": 1.5}, "invalid_type", "top_k", "must be an integer, not a number."),
    ({"max_tokens": 0}, "integer_below_min_value", "max_tokens", ""),
    ({"max_tokens": 10**4299}, "integer_above_max_value", "max_tokens", ""),
    ({"max_tokens": [1]}, "invalid_type", "max_tokens", "must be an integer, not an array."),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_parameter_combination", "max_tokens", "max_completion"),
    ({"seed": 2**63}, "integer_above_max_value", "seed", ""),
    ({"frequency_penalty": 2.1}, "decimal_above_max_value", "frequency_penalty", ""),
    ({"presence_penalty": {}}, "invalid_type", "presence_penalty", "not an object."),
    ({"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty", "at least 0.01"),
    ({"logit_bias": {"256": 1}}, "invalid_value", "logit_bias.256", "for a token id from 0 to 255"),
    ({"logit_bias": {"-1": 1}}, "invalid_value", "logit_bias.-1", ""),
    ({"logit_bias": {"0" * 20 + "256": 1}}, "invalid_value", "logit_bias." + "0" * 20 + "256", ""),
    ({"logit_bias": {"0" * 5000: 1}}, "invalid_value", "logit_bias." + "0" * 61 + "...", ""),
    ({"logit_bias": {"1": 101}}, "decimal_above_max_value", "logit_bias.1", ""),
    ({"logit_bias": {str(i): 0 for i in range(1025)}}, "object_above_max_properties", "logit_bias", "1024 keys"),
    ({"stop": ""}, "empty_string", "stop", "must not be empty."),
    ({"stop": ["a", ""]}, "empty_string", "stop[1]", ""),
    ({"stop": ["a"] * 17}, "array_above_max_length", "stop", "may have at most 16 entries; got 17."),
    ({"stop": "x" * 1025}, "string_above_max_length", "stop", "may have at most 1024 characters; got 1025."),
    ({"stop": 5}, "invalid_type", "stop", "must be a string or an array, not an integer."),
    ({"min_tokens": 9}, "integer_above_max_value", "min_tokens", "must be at most 8; got 9."),
    ({"ignore_eos": 1}, "invalid_type", "ignore_eos", "must be a boolean, not an integer."),
    ({"stream": "yes"}, "invalid_type", "stream", ""),
    ({"stream_options": {}}, "invalid_parameter_combination", "stream_options", "'stream'"),
    ({"stream": True, "stream_options": {"include": True}}, "unknown_parameter", "stream_options.include", ""),
    ({"session_id": ""}, "empty_string", "session_id", ""),
    ({"prompt_cache_key": "x" * 65}, "string_above_max_length", "prompt_cache_key", ""),
    ({"cache_salt": "a/b"}, "invalid_value", "cache_salt", ""),
    ({"metadata": {"a": 1}}, "invalid_type", "metadata.a", ""),
    ({"metadata": {str(i): "" for i in range(17)}}, "object_above_max_properties", "metadata", ""),
    ({"safety_identifier": "x" * 129}, "string_above_max_length", "safety_identifier", ""),
    ({"service_tier": "best"}, "invalid_value", "service_tier", 'got "best".'),
    ({"messages": None}, "missing_required_parameter", "messages", "Parameter 'messages' is required."),
    ({"messages": []}, "empty_array", "messages", ""),
    ({"messages": [USER] * 2049}, "array_above_max_length", "messages", ""),
    ({"messages": "hi"}, "invalid_type", "messages", "must be an array, not a string."),
    ({"messages": [USER, None]}, "invalid_type", "messages[1]", "not null."),
    ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role", ""),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role", 'got "robot".'),
    ({"messages": [USER, {"role": "user"}]}, "missing_required_parameter", "messages[1].content", ""),
    ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content", ""),
    ({"messages": [{"role": "user", "content": []}]}, "empty_array", "messages[0].content", ""),
    ({"messages": [{"role": "tool", "content": "x"}]}, "missing_required_parameter", "messages[0].tool_call_id", ""),
    ({"n": 17}, "integer_above_max_value", "n", "must be at most 16; got 17."),
    ({"n": 0}, "integer_below_min_value", "n", ""),
    ({"n": True}, "invalid_type", "n", ""),
    ({"logprobs": 3}, "invalid_type", "logprobs", "must be a boolean, not an integer."),
    ({"top_logprobs": 3}, "invalid_parameter_combination", "top_logprobs", "needs 'logprobs'"),
    ({"logprobs": True, "top_logprobs": 21}, "integer_above_max_value", "top_logprobs", ""),
    ({"best_of": 2}, "unknown_parameter", "best_of", ""),
    ({"functions": []}, "unsupported_parameter", "functions", "Use 'tools'."),
    ({"prompt_logprobs": 21}, "integer_above_max_value", "prompt_logprobs", ""),
    ({"prompt_logprobs": 0, "stream": True}, "invalid_parameter_combination", "prompt_logprobs", "'stream'"),
    ({"stop_token_ids": [256]}, "invalid_value", "stop_token_ids[0]", "a token id from 0 to 255"),
    ({"stop_token_ids": [5] * 129}, "array_above_max_length", "stop_token_ids", ""),
    ({"stop_token_ids": 5}, "invalid_type", "stop_token_ids", ""),
    ({"include_stop_str_in_output": 1}, "invalid_type", "include_stop_str_in_output", ""),
    ({"skip_special_tokens": "no"}, "invalid_type", "skip_special_tokens", ""),
    ({"return_token_ids": 0}, "invalid_type", "return_token_ids", ""),
    ({"priority": 1001}, "integer_above_max_value", "priority", ""),
    ({"priority": -1001}, "integer_below_min_value", "priority", ""),
    (
        {"add_generation_prompt": True, "continue_final_message": True},
        "invalid_parameter_combination",
        "add_generation_prompt",
        "exclude each other",
    ),
    ({"continue_final_message": True}, "invalid_value", "messages[0].role", "assistant to be continued"),
    ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type", ""),
    (
        {"response_format": {"type": "json_schema", "schema": {}}},
        "unknown_parameter",
        "response_format.schema",
        "It belongs in 'response_format.json_schema.schema'",
    ),
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema", ""),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function", ""),
    ({"tool_choice": "required"}, "invalid_parameter_combination", "tool_choice", "tools"),
    ({"reasoning_effort": "some"}, "invalid_value", "reasoning_effort", "one of none, minimal"),
    ({"audio": {}}, "unsupported_parameter", "audio", ""),
    ({"modalities": ["audio"]}, "unsupported_parameter", "modalities", ""),
    ({"prompt_cache_options": {"mode": "none"}}, "invalid_value", "prompt_cache_options.mode", ""),
    (
        {"temprature": 1},
        "unknown_parameter",
        "temprature",
        "Unknown parameter 'temprature'. Did you mean",
    ),
    ({"max_new_tokens": 1}, "unknown_parameter", "max_new_tokens", "Did you mean 'max_tokens'?"),
    ({"guided_json": {}}, "unknown_parameter", "guided_json", "Did you mean 'response_format'?"),
    ({"zzz": None}, "unknown_parameter", "zzz", "Unknown parameter 'zzz'."),
    ({LONG: 1}, "unknown_parameter", LONG[:61] + "...", ""),
]
PARTS: list[tuple[Any, str, str]] = [
    ({"type": "text"}, "missing_required_parameter", "text"),
    ({"type": "text", "text": 5}, "invalid_type", "text"),
    ({"type": "text", "text": "x", "txt": 1}, "unknown_parameter", "txt"),
    ({"type": "text", "text": "x", "prompt_cache_breakpoint": 1}, "invalid_type", "prompt_cache_breakpoint"),
    ({"type": "image_url", "image_url": {}}, "unsupported_parameter", "type"),
    ({"type": "refusal", "refusal": "x"}, "invalid_value", "type"),
    ({"text": "x"}, "missing_required_parameter", "type"),
]
NEUTRAL: dict[str, Any] = {
    "n": 1.0,
    "logprobs": False,
    "top_logprobs": 0,
    "response_format": {"type": "text"},
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "stop_token_ids": [],
    "include_stop_str_in_output": False,
    "skip_special_tokens": True,
    "return_token_ids": False,
    "priority": 0,
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "add_generation_prompt": True,
    "continue_final_message": False,
    "modalities": ["text"],
    "user": "u",
    "safety_identifier": "s",
    "metadata": {"a": "b"},
    "store": True,
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
    "audio": None,
    "seed": None,
    "logit_bias": {},
    "stop": [],
}


async def test_each_violation_is_named() -> None:
    async with site() as server:
        for changes, code, param, words in CHAT_CASES:
            error = check_error(await server.chat(**changes), 400, code, param)
            assert words in error["message"]
            assert error["type"] == "invalid_request_error"
        for part, code, name in PARTS:
            messages = [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, part]}]
            check_error(await server.chat(messages=messages), 400, code, f"messages[1].content[1].{name}")
        assert server.runner.inner.rows == []


async def test_fields_that_ask_for_nothing_pass() -> None:
    async with site() as server:
        plain = (await server.chat()).json()
        response = await server.chat(**NEUTRAL)
        assert response.status_code == 200, response.text
        assert response.json()["choices"] == plain["choices"]


async def test_obfuscation_is_accepted_and_not_done() -> None:
    async with site() as server:
        answer = await server.chat(stream=True, stream_options={"include_obfuscation": True})
        assert answer.status_code == 200 and "obfuscation" not in answer.text


@pytest.mark.parametrize("call", [{}, {"id": "c"}, {"id": "c", "function": {}}, {"id": "c", "function": {"name": "f"}}])
async def test_tool_calls_of_the_assistant_are_checked(call: dict[str, Any]) -> None:
    async with site() as server:
        response = await server.chat(messages=[{"role": "assistant", "tool_calls": [call]}])
        assert response.json()["error"]["code"] == "missing_required_parameter"
        assert response.json()["error"]["param"].startswith("messages[0].tool_calls[0].")


async def test_lenient_servers_drop_unknown_fields_and_say_so() -> None:
    async with site(server__strict_parameters="false") as server:
        changes = {"temprature": 1, "stream_options": {"näme": 1, "include_usage": True}, "stream": True}
        response = await server.chat(**changes)
        assert response.status_code == 200
        warnings = "unknown_parameter=temprature,unknown_parameter=stream_options.n_me"
        assert response.headers["x-openai-kv-warnings"] == warnings
        check_error(await server.chat(audio={}), 400, "unsupported_parameter", "audio")
        assert "x-openai-kv-warnings" not in (await server.chat()).headers


async def test_an_error_never_echoes_much_of_a_value() -> None:
    async with site() as server:
        error = check_error(await server.chat(service_tier="y" * 500), 400, "invalid_value", "service_tier")
        assert "y" * 62 not in error["message"] and "y" * 50 in error["message"]


async def test_model_is_required_and_must_be_served() -> None:
    async with site(model_names=("first", "second", "team-*")) as server:
        check_error(await server.chat(model=None), 400, "missing_required_parameter", "model")
        check_error(await server.chat(model=5), 400, "invalid_type", "model")
        error = check_error(await server.chat(model="gpt-9"), 404, "model_not_found", "model")
        assert "gpt-9" in error["message"]
        for name in ("first", "second", "team-a/b"):
            assert (await server.chat(model=name)).json()["model"] == name
        assert (await server.post("/generate", {"prompt": "x", "max_tokens": 1})).json()["model"] == "first"
        assert CHAT["model"] == "fake"
