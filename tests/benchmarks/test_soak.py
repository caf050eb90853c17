import asyncio
import io
import json
import time
from collections import Counter

import httpx

from benchmarks.loop_watch import LoopWatch
from benchmarks.soak_clients import ending, name_of
from benchmarks.soak_requests import Habit, visit


def hold_up(seconds: float) -> None:
    time.sleep(seconds)


async def test_a_stall_is_written_down_with_what_ran() -> None:
    log = io.StringIO()
    watch = LoopWatch(log)
    watch.start()
    await asyncio.sleep(0.02)
    hold_up(0.3)
    await asyncio.sleep(0.05)
    watch.stop()
    stalls = [json.loads(line) for line in log.getvalue().splitlines()]
    stall = next(stall for stall in stalls if stall["late_ms"] > 250)
    assert stall["cause"] != "own work" and stall["ms"]["own work"] < 250, "sleeping takes no time of the processor"
    assert any("hold_up" in call for calls in stall["seen"] for call in calls["MainThread"])
    assert watch.worst > 0.25


def test_visits_follow_from_seed_and_number() -> None:
    assert [visit(1, number, "m") for number in range(50)] == [visit(1, number, "m") for number in range(50)]
    assert visit(1, 5, "m") != visit(2, 5, "m")
    visits = [visit(1, number, "m") for number in range(1000)]
    assert set(Counter(one.habit for one in visits)) == set(Habit)
    bodies = [one.body or {} for one in visits]
    for asked in ("n", "stop", "tools", "response_format", "stop_sequences", "priority"):
        assert any(asked in body for body in bodies), asked
    assert {one.path for one in visits} > {"/v1/chat/completions", "/v1/completions", "/generate", "/metrics"}


def test_how_a_stream_ended() -> None:
    done = b"data: [DONE]\n\n"
    assert ending(b'data: {"id":1}\n\n' + done) == "done"
    assert ending(b'data: {"id":1}\n\ndata: {"error":{"code":"request_timeout"}}\n\n' + done) == "event request_timeout"
    assert ending(b'"error": cut in the middle}\n\n' + done) == "done"
    assert ending(b'data: {"id":1}\n\n') == "no [DONE]"


def test_only_whole_answers_may_be_given_up_on() -> None:
    silence = httpx.ReadTimeout("")
    visits = [one for one in (visit(1, number, "m") for number in range(100)) if one.body]
    whole, stream = (
        next(one for one in visits if bool((one.body or {}).get("stream")) is kind) for kind in (False, True)
    )
    assert name_of(silence, whole) == "gave up"
    assert name_of(silence, stream) == "cut: ReadTimeout"
    assert name_of(httpx.ReadError(""), whole) == "cut: ReadError"
