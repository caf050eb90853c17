"""Events: their order, their names and what they add up to."""

import asyncio
from collections import defaultdict
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from openai_kv.server.streaming import EventStream
from tests.server.responses.asking import ASK, PATH, answer, ask, kinds, named_events
from tests.server.responses.test_answers import TOOLS
from tests.server.scripted import scripted
from tests.server.serving import Site, check_error, live_site, site
from tests.server.test_reasoning import TEXT as THOUGHTS
from tests.server.test_reasoning import THINKS
from tests.server.test_tools import TEXTS

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
MESSAGE = [
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
]
REASONING = [kind.replace("output_text", "reasoning_text") for kind in MESSAGE]
CALL = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
VARYING = ("id", "created_at", "completed_at", "usage")


async def stream(server: Site, **changes: Any) -> list[dict[str, Any]]:
    response = await ask(server, stream=True, **changes)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "[DONE]" not in response.text and "\r" not in response.text
    found = named_events(response.text)
    for event in found:
        assert EVENT.validate_python(event).type == event["type"]
    return found


def output_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Without ids, which are drawn anew."""
    drop = ("id", "call_id")
    return [{name: value for name, value in item.items() if name not in drop} for item in response["output"]]


def deltas(events: list[dict[str, Any]]) -> dict[int, str]:
    """By output index."""
    found: dict[int, str] = defaultdict(str)
    for event in events:
        if event["type"].endswith(".delta"):
            found[event["output_index"]] += event["delta"]
    return found


async def test_a_message() -> None:
    async with scripted("A store of answers.") as server:
        whole = await answer(server, max_output_tokens=99)
        events = await stream(server, max_output_tokens=99)
        assert kinds(events) == ["created", "in_progress", *MESSAGE, "completed"]
        created, last = events[0]["response"], events[-1]["response"]
        assert (created["status"], created["output"], created["usage"]) == ("in_progress", [], None)
        assert output_of(last) == output_of(whole)
        assert {n: v for n, v in last.items() if n not in (*VARYING, "output")} == {
            n: v for n, v in whole.items() if n not in (*VARYING, "output")
        }
        assert len({event["response"]["id"] for event in events if "response" in event}) == 1
        assert (await server.client.get(f"{PATH}/{last['id']}")).json() == last
        await server.settle()


async def test_reasoning_then_text() -> None:
    async with scripted(THOUGHTS, THINKS) as server:
        whole = await answer(server, max_output_tokens=300)
        events = await stream(server, max_output_tokens=300)
        assert kinds(events) == ["created", "in_progress", *REASONING, *MESSAGE, "completed"]
        assert deltas(events) == {0: "Hm, two.", 1: "It is 2."}
        assert output_of(events[-1]["response"]) == output_of(whole)


@pytest.mark.parametrize("wanted", ["auto", "required"])
async def test_text_and_calls(wanted: str) -> None:
    async with scripted(TEXTS["hermes"]) as server:
        asked = {"tools": TOOLS, "tool_choice": wanted, "max_output_tokens": 300}
        whole = await answer(server, **asked)
        events = await stream(server, **asked)
        message = MESSAGE if wanted == "auto" else []
        assert kinds(events)[: 2 + len(message)] == ["created", "in_progress", *message]
        assert kinds(events)[2 + len(message) :] == [*CALL * (len(whole["output"]) - bool(message)), "completed"]
        last = events[-1]["response"]
        assert output_of(last) == output_of(whole)
        for index, item in enumerate(last["output"]):
            if item["type"] == "function_call":
                assert deltas(events)[index] == item["arguments"]
                (done,) = [event for event in events if event.get("arguments") and event["output_index"] == index]
                assert (done["item_id"], done["name"]) == (item["id"], item["name"])


async def test_one_that_is_cut_is_incomplete() -> None:
    async with scripted(TEXTS["hermes"]) as server:
        cut = TEXTS["hermes"].encode().index(b'"days"')
        events = await stream(server, tools=TOOLS, max_output_tokens=cut)
        assert kinds(events) == ["created", "in_progress", *MESSAGE, *CALL, "incomplete"]
        last = events[-1]["response"]
        assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert [item["status"] for item in last["output"]] == ["completed", "incomplete"]
        assert last["output"][1]["arguments"] == '{"city": "Zürich", '


async def test_a_call_that_breaks_stays_as_far_as_it_came() -> None:
    async with scripted('<tool_call>{"name": "now", "arguments": {"a": oops}}</tool_call>') as server:
        events = await stream(server, tools=TOOLS, max_output_tokens=300)
        assert kinds(events) == ["created", "in_progress", *CALL, *MESSAGE, "completed"]
        call, _ = events[-1]["response"]["output"]
        assert (call["status"], call["arguments"]) == ("incomplete", '{"a": oops}')


async def test_nothing_said() -> None:
    async with scripted("") as server:
        events = await stream(server)
        empty = [kind for kind in MESSAGE if "delta" not in kind]
        assert kinds(events) == ["created", "in_progress", *empty, "completed"]


async def test_log_probabilities_go_with_their_text() -> None:
    async with scripted(THOUGHTS, THINKS) as server:
        events = await stream(server, max_output_tokens=300, include=["message.output_text.logprobs"])
        told = [event for event in events if event["type"] == "response.output_text.delta"]
        assert ["".join(each["token"] for each in event["logprobs"]) for event in told] == [*"It", " i", "s", " 2", "."]
        assert [event["delta"] for event in told] == [*"It", " i", "s", " 2", "."]
        (done,) = [event for event in events if event["type"] == "response.output_text.done"]
        assert done["logprobs"] == [entry for event in told for entry in event["logprobs"]]
        assert Response.model_validate(events[-1]["response"]).output_text == "It is 2."


async def test_before_the_first_token_an_error_is_plain_and_later_the_response_has_failed() -> None:
    async with site() as server:
        server.runner.inner.fail_at = {1}
        check_error(await ask(server, stream=True), 500, "internal_error")
    async with site() as server:
        server.runner.inner.fail_at = {4}
        events = await stream(server)
        assert kinds(events)[-1] == "failed" and "completed" not in kinds(events)
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert failed["error"]["type"] == "server_error" and failed["output"][0]["status"] == "incomplete"
        assert len(server.context.responses) == 0
        await server.settle()


async def test_a_deadline_in_the_middle() -> None:
    async with live_site() as (server, url), httpx.AsyncClient() as client:
        server.runner.hold()
        body = {**ASK, "stream": True}
        asked = asyncio.create_task(client.post(url + PATH, json=body, headers={"x-request-timeout": "0.5"}))
        await server.step_entered()
        server.runner.allow()
        events = named_events((await asked).text)
        assert kinds(events)[-1] == "failed"
        error = events[-1]["response"]["error"]
        assert (error["code"], error["type"]) == ("server_error", "timeout_error")
        server.runner.release()
        await server.settle()


async def test_a_failure_after_a_keep_alive_begins_with_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live_site(server__sse_ping=0.05) as (server, url), httpx.AsyncClient() as client:
        kept = asyncio.Event()
        keep_alive = EventStream.keep_alive

        async def noted(events: EventStream) -> None:
            await keep_alive(events)
            kept.set()

        monkeypatch.setattr(EventStream, "keep_alive", noted)
        server.runner.inner.fail_at = {1}
        server.runner.hold()
        asked = asyncio.create_task(client.post(url + PATH, json={**ASK, "stream": True}))
        await kept.wait()
        server.runner.release()
        assert kinds(named_events((await asked).text)) == ["created", "in_progress", "failed"]
        await server.settle()


@pytest.mark.parametrize("streams", [True, False])
async def test_hanging_up_frees_the_blocks_and_stores_nothing(streams: bool) -> None:
    async with live_site() as (server, url), httpx.AsyncClient() as client:
        server.runner.hold()
        body = {**ASK, "max_output_tokens": 200, "stream": streams}
        asked = asyncio.create_task(client.post(url + PATH, json=body))
        await server.step_entered()
        if streams:
            server.runner.allow()
            await server.step_entered()
        asked.cancel()
        server.runner.allow()
        await server.exporter.until(lambda: bool(server.exporter.http))
        server.runner.release()
        await server.settle()
        assert server.exporter.aborts == ["disconnect"]
        assert len(server.context.responses) == 0


async def test_what_exporters_are_told() -> None:
    async with scripted('{"a": 1}') as server:
        await ask(server, text={"format": {"type": "json_object"}}, max_output_tokens=50, stream=True)
        await server.exported()
        (stats,) = server.exporter.http
        assert stats.route == PATH and stats.generation is not None
        told = stats.generation
        assert (told.operation, told.output_type, told.stream) == ("chat", "json", True)
        assert told.response_id.startswith("resp_")
