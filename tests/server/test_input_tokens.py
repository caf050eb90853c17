from tests.server.serving import CHAT, check_error, site

PATH = "/v1/chat/completions/input_tokens"


async def test_it_counts_what_the_chat_would_be() -> None:
    async with site() as server:
        whole = (await server.chat()).json()["usage"]["prompt_tokens"]
        assert (await server.post(PATH, CHAT)).json() == {"object": "response.input_tokens", "input_tokens": whole}


async def test_length_is_no_matter_but_everything_else_is_checked() -> None:
    async with site() as server:
        long = {**CHAT, "messages": [{"role": "user", "content": "x" * 5000}]}
        assert (await server.post(PATH, long)).json()["input_tokens"] > 5000
        check_error(await server.post(PATH, {**CHAT, "top_p": 2}), 400, "decimal_above_max_value", "top_p")
        both = {**CHAT, "max_tokens": 1, "max_completion_tokens": 2}
        check_error(await server.post(PATH, both), 400, "invalid_parameter_combination", "max_tokens")
        check_error(await server.post(PATH, {**CHAT, "model": "other"}), 404, "model_not_found", "model")
        assert server.engine.num_active == 0
