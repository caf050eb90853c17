from typing import Any

from tokenizers.processors import TemplateProcessing

from tests.harness import fake_runner
from tests.server.serving import MESSAGES, SHAPE, check_error, site
from tests.tiny_tokenizer import tiny_tokenizer


async def test_tokenize_text_and_back() -> None:
    async with site() as server:
        answer = (await server.post("/tokenize", {"prompt": "héllo", "return_token_strs": True})).json()
        assert answer["tokens"] == tiny_tokenizer().encode("héllo")
        assert (answer["count"], answer["max_model_len"]) == (6, 512)
        assert answer["token_strs"] == tiny_tokenizer().token_strs(answer["tokens"])
        back = (await server.post("/detokenize", {"tokens": answer["tokens"]})).json()
        assert back == {"prompt": "héllo"}


async def test_messages_become_what_the_chat_route_prefills() -> None:
    async with site() as server:
        tokens = (await server.post("/tokenize", {"messages": MESSAGES})).json()["tokens"]
        answer = await server.chat()
        assert len(tokens) == answer.json()["usage"]["prompt_tokens"]
        assert tokens == tiny_tokenizer().render_chat(MESSAGES)
        bare = (await server.post("/tokenize", {"messages": MESSAGES, "add_generation_prompt": False})).json()["tokens"]
        assert bare == tiny_tokenizer().render_chat(MESSAGES, add_generation_prompt=False)
        begun = [*MESSAGES, {"role": "assistant", "content": "It is"}]
        tokens = (await server.post("/tokenize", {"messages": begun, "continue_final_message": True})).json()["tokens"]
        assert tiny_tokenizer().decode(tokens, skip_special_tokens=False).endswith("It is")


async def test_special_tokens_are_added_and_skipped_as_asked() -> None:
    tokenizer, bos = tiny_tokenizer(), "<|endoftext|>"
    bos_id = tokenizer.special_ids[bos]
    tokenizer.backend.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, bos_id)])
    async with site(tokenizer=tokenizer, runner=fake_runner(SHAPE, vocab_size=300)) as server:
        for path in ("/tokenize", "/generate", "/v1/completions"):
            lengths = []
            for added in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
                body = {"model": "fake", "prompt": "ab", **({} if path == "/tokenize" else {"max_tokens": 1}), **added}
                answer = (await server.post(path, body)).json()
                lengths.append(answer["count"] if path == "/tokenize" else answer["usage"]["prompt_tokens"])
            assert lengths == [3, 3, 2]
        tokens = {"tokens": [bos_id, *tokenizer.encode("ab", add_special_tokens=False)]}
        assert (await server.post("/detokenize", tokens)).json() == {"prompt": f"{bos}ab"}
        assert (await server.post("/detokenize", {**tokens, "skip_special_tokens": True})).json() == {"prompt": "ab"}


async def test_refusals() -> None:
    combination = "invalid_parameter_combination"
    both = {"add_generation_prompt": True, "continue_final_message": True}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, combination, "prompt"),
        ({"prompt": "a", "messages": MESSAGES}, combination, "messages"),
        ({"prompt": "a", "add_generation_prompt": True}, combination, "add_generation_prompt"),
        ({"messages": MESSAGES, **both}, combination, "add_generation_prompt"),
        ({"messages": MESSAGES, "continue_final_message": True}, "invalid_value", "messages[0].role"),
        ({"messages": MESSAGES, "add_special_tokens": True}, "unsupported_parameter", "add_special_tokens"),
        ({"promt": "a"}, "unknown_parameter", "promt"),
    ]
    async with site() as server:
        for body, code, param in cases:
            check_error(await server.post("/tokenize", body), 400, code, param)
        check_error(await server.post("/detokenize", {"tokens": [1] * 513}), 400, "array_above_max_length", "tokens")
        check_error(await server.post("/detokenize", {"tokens": [-1]}), 400, "invalid_value", "tokens[0]")
        check_error(await server.post("/detokenize", {}), 400, "missing_required_parameter", "tokens")
        check_error(await server.post("/tokenize", {"prompt": "a", "model": "b"}), 404, "model_not_found", "model")


async def test_tokenizer_info() -> None:
    async with site() as server:
        info = (await server.client.get("/tokenizer_info")).json()
        assert info["max_model_len"] == 512 and info["eos_token"] == "<|im_end|>" and info["unk_token"] is None
