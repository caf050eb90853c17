"""Several answers to a prompt, as clients get them."""

import asyncio
from dataclasses import replace

import pytest

from openai_kv.outputs import ModelRunnerOutput, SchedulerOutput
from tests.fakes import expected_output
from tests.server.serving import MESSAGES, SHAPE, Site, check_error, events, site
from tests.tiny_tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PROMPT = TOKENIZER.render_chat(MESSAGES)


def text_of(prompt: list[int], num_tokens: int) -> str:
    return TOKENIZER.decode(expected_output(prompt, num_tokens, 256))


async def test_chat_choices_share_the_prompt() -> None:
    async with site() as server:
        response = await server.chat(n=4)
        answer = response.json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert {choice["message"]["content"] for choice in answer["choices"]} == {text_of(PROMPT, 8)}
        usage = answer["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(PROMPT), 32)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": len(PROMPT)}
        assert response.headers["x-openai-kv-cache-hit-tokens"] == "0"
        assert server.runner.inner.num_rows == len(PROMPT) + 4 * 7
        again = await server.chat(n=4)
        assert again.headers["x-openai-kv-cache-hit-tokens"] == str(len(PROMPT))
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == len(PROMPT)
        await server.settle()


async def test_chat_stream_interleaves_by_index() -> None:
    async with site() as server:
        response = await server.chat(n=3, stream=True, stream_options={"include_usage": True})
        *chunks, usage, done = events(response.text)
        assert done == "[DONE]" and usage["usage"]["prompt_tokens"] == len(PROMPT)
        assert usage["usage"]["completion_tokens"] == 24
        assert response.headers["x-openai-kv-cache-hit-tokens"] == "0"
        for index in range(3):
            choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert choices[0]["delta"]["role"] == "assistant"
            assert "".join(choice["delta"].get("content", "") for choice in choices) == text_of(PROMPT, 8)
            assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
        await server.settle()


async def test_choices_of_several_prompts_are_numbered_prompt_by_prompt() -> None:
    prompts = [[1, 2, 3], [4, 5]]
    async with site() as server:
        body = {"model": "fake", "prompt": prompts, "n": 2, "max_tokens": 3, "return_token_ids": True}
        answer = (await server.post("/v1/completions", body)).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        expected = [expected_output(prompt, 3, 256) for prompt in prompts for _ in range(2)]
        assert [choice["token_ids"] for choice in answer["choices"]] == expected
        assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [prompts[0]] * 2 + [prompts[1]] * 2
        assert answer["usage"]["prompt_tokens"] == 5 and answer["usage"]["completion_tokens"] == 12
        *chunks, _ = events((await server.post("/v1/completions", {**body, "stream": True})).text)
        for index, tokens in enumerate(expected):
            choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
            assert [token for choice in choices for token in choice["token_ids"]] == tokens
            assert choices[0]["prompt_token_ids"] == prompts[index // 2]


class Ranked:
    """Choice k's tokens are worth what `worth[k]` says."""

    def __init__(self, server: Site, worth: list[float]) -> None:
        self.execute, self.worth = server.runner.inner.execute_model, worth

    def __call__(self, scheduled: SchedulerOutput) -> ModelRunnerOutput:
        output = self.execute(scheduled)
        by_id = {request.request_id: request.choice for request in scheduled.requests}
        values = {
            name: [type(entry)(entry.token_id, self.worth[by_id[name]], 1) for entry in entries]
            for name, entries in output.logprobs.items()
        }
        tokens = {name: [100 + by_id[name]] for name in output.sampled_token_ids}
        return ModelRunnerOutput(tokens, logprobs=values)


async def test_best_of_gives_the_likeliest_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "fake", "prompt": [[1, 2], [3]], "max_tokens": 3, "return_token_ids": True, "best_of": 4}
    async with site() as server:
        monkeypatch.setattr(server.runner.inner, "execute_model", Ranked(server, [-3.0, -1.0, -4.0, -1.0]))
        answer = (await server.post("/v1/completions", {**body, "n": 3})).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert [choice["token_ids"][0] for choice in answer["choices"]] == [101, 103, 100] * 2
        assert all(choice["logprobs"] is None for choice in answer["choices"])
        assert answer["usage"]["completion_tokens"] == 2 * 4 * 3 and answer["usage"]["prompt_tokens"] == 3
        single = (await server.post("/v1/completions", {**body, "logprobs": 0})).json()
        assert single["choices"][0]["logprobs"]["token_logprobs"] == [-1.0] * 3
        as_many = (await server.post("/v1/completions", {**body, "n": 4})).json()
        assert [choice["token_ids"][0] for choice in as_many["choices"]] == [100, 101, 102, 103] * 2


async def test_best_of_is_at_least_n_and_not_for_streams() -> None:
    combination, body = "invalid_parameter_combination", {"model": "fake", "prompt": "a", "max_tokens": 2}
    async with site() as server:
        check_error(await server.post("/v1/completions", {**body, "n": 3, "best_of": 2}), 400, combination, "best_of")
        streamed = {**body, "n": 2, "best_of": 3, "stream": True}
        check_error(await server.post("/v1/completions", streamed), 400, combination, "best_of")
        equal = await server.post("/v1/completions", {**streamed, "best_of": 2})
        assert equal.status_code == 200
        above = await server.post("/v1/completions", {**body, "best_of": 17})
        check_error(above, 400, "integer_above_max_value", "best_of")
    async with site(server__max_n=2) as server:
        check_error(await server.chat(n=3), 400, "integer_above_max_value", "n")


async def test_a_client_that_leaves_ends_all_choices() -> None:
    async with site() as server:
        server.runner.hold()
        request = asyncio.create_task(server.chat(n=4, max_tokens=400))
        await server.active(4)
        server.runner.allow(3)
        for _ in range(4):
            await server.step_entered()
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        server.runner.release()
        await server.settle()
        assert server.engine.num_active == 0


async def test_choices_are_one_request_in_the_queue() -> None:
    """The queue holds one; four choices and then a second request wait, the third is refused."""
    async with site(SHAPE, server__max_queue=2, server__max_queued_tokens=2 * len(PROMPT)) as server:
        server.runner.hold()
        running = asyncio.create_task(server.chat(max_tokens=1))
        await server.step_entered()
        waiting = [asyncio.create_task(server.chat(n=4)) for _ in range(2)]
        await server.active(9)
        check_error(await server.chat(), 429, "queue_full")
        server.runner.release()
        assert [(await response).status_code for response in (running, *waiting)] == [200, 200, 200]
        await server.settle()


async def test_choices_that_wait_for_a_seat_do_not_time_out_once_the_first_runs() -> None:
    async with site(SHAPE, server__queue_timeout=0.2) as server:
        server.runner.hold()
        request = asyncio.create_task(server.chat(n=2))
        await server.step_entered()
        await asyncio.sleep(0.3)
        server.runner.release()
        assert (await request).status_code == 200


async def test_priority_may_be_forbidden() -> None:
    async with site(server__allow_priority="false") as server:
        error = check_error(await server.chat(priority=1), 403, "priority_not_allowed", "priority")
        assert error["type"] == "permission_error"
        assert (await server.chat(priority=0)).status_code == 200
        native = await server.post("/generate", {"prompt": "a", "priority": -1})
        check_error(native, 403, "priority_not_allowed", "priority")


async def test_waiting_requests_run_by_priority() -> None:
    finished: list[int] = []

    async def ask(server: Site, priority: int) -> None:
        assert (await server.chat(priority=priority)).status_code == 200
        finished.append(priority)

    async with site(replace(SHAPE, max_num_seqs=1)) as server, asyncio.TaskGroup() as tasks:
        server.runner.hold()
        for index, priority in enumerate((0, 5, 1, -5)):
            tasks.create_task(ask(server, priority))
            await server.active(index + 1)
            if index == 0:
                await server.step_entered()
        server.runner.release()
    assert finished == [0, -5, 1, 5]
