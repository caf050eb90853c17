from tests.fakes import expected_output
from tests.server.serving import MESSAGES, check_error, events, site
from tests.tiny_tokenizer import tiny_tokenizer

IDS = [1, 2, 3, 4, 5, 6]
BODY = {"prompt_token_ids": IDS, "max_tokens": 5, "temperature": 0}


async def test_answer_tells_what_the_cache_did() -> None:
    async with site() as server:
        first, response = (await server.post("/generate", BODY)).json(), await server.post("/generate", BODY)
        answer = response.json()
        output = expected_output(IDS, 5, 256)
        assert first["cache_hit_kind"] == "miss" and first["cache_write_tokens"] == 6
        assert answer.pop("id").startswith("gen-")
        timings = answer.pop("timings")
        assert answer.pop("created") > 0
        assert answer.pop("usage")["completion_tokens"] == 5
        assert answer == {
            "object": "generation",
            "model": "fake",
            "text": tiny_tokenizer().decode(output),
            "prompt_token_ids": IDS,
            "token_ids": output,
            "finish_reason": "length",
            "stop_reason": None,
            "logprobs": None,
            "cache_hit_tokens": 6,
            "cache_write_tokens": 0,
            "cache_hit_kind": "exact",
            "cache_hit_tiers": {"device": 6, "host": 0, "disk": 0},
        }
        assert response.headers["x-openai-kv-cache-hit-tokens"] == "6"
        assert timings["total_ms"] >= timings["ttft_ms"] >= timings["queue_ms"] >= 0
        assert timings["tokens_per_second"] > 0
        await server.settle()


async def test_without_output_there_is_no_first_token() -> None:
    async with site() as server:
        answer = (await server.post("/generate", {**BODY, "max_tokens": 0})).json()
        assert (answer["text"], answer["token_ids"], answer["finish_reason"]) == ("", [], "length")
        assert answer["timings"]["ttft_ms"] is answer["timings"]["tokens_per_second"] is None


async def test_stream_ends_with_all_other_fields() -> None:
    async with site() as server:
        whole = (await server.post("/generate", BODY)).json()
        *pieces, last, done = events((await server.post("/generate", {**BODY, "stream": True})).text)
        assert done == "[DONE]"
        assert all(set(piece) == {"text", "token_ids", "logprobs"} for piece in pieces)
        assert "".join(piece["text"] for piece in pieces) == whole["text"]
        assert [token for piece in pieces for token in piece["token_ids"]] == whole["token_ids"] == last["token_ids"]
        assert last["text"] == "" and last["cache_hit_tokens"] == 6 and last["finish_reason"] == "length"


async def test_messages_and_text_are_prompts_too() -> None:
    async with site() as server:
        answer = (await server.post("/generate", {"messages": MESSAGES, "max_tokens": 1})).json()
        assert answer["prompt_token_ids"] == tiny_tokenizer().render_chat(MESSAGES)
        answer = (await server.post("/generate", {"prompt": "abc", "max_tokens": 1})).json()
        assert answer["prompt_token_ids"] == tiny_tokenizer().encode("abc")


async def test_exactly_one_prompt() -> None:
    combination = "invalid_parameter_combination"
    async with site() as server:
        check_error(await server.post("/generate", {}), 400, combination, "prompt")
        both = {"prompt": "a", "prompt_token_ids": [1]}
        check_error(await server.post("/generate", both), 400, combination, "prompt_token_ids")
        kwargs = {"prompt": "a", "chat_template_kwargs": {}}
        check_error(await server.post("/generate", kwargs), 400, combination, "chat_template_kwargs")
        long = {"prompt_token_ids": [1] * 513, "max_tokens": 0}
        check_error(await server.post("/generate", long), 400, "context_length_exceeded", "prompt_token_ids")
        check_error(await server.post("/generate", {"prompt_token_ids": []}), 400, "empty_array", "prompt_token_ids")
        one = {"prompt": "a", "n": 1}
        check_error(await server.post("/generate", one), 400, "unknown_parameter", "n")


async def test_bad_headers() -> None:
    async with site() as server:
        for name, value in (("X-Request-Timeout", "0"), ("X-Request-Timeout", "soon"), ("X-Session-ID", "x" * 129)):
            check_error(await server.post("/generate", BODY, **{name: value}), 400, "invalid_value", name)
        good = {"X-Request-Timeout": "20", "X-Session-ID": "s1"}
        assert (await server.post("/generate", BODY, **good)).status_code == 200
