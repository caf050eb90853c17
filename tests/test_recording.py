import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from openai_kv.errors import ConfigError
from openai_kv.recording import TraceRecorder, open_recording
from openai_kv.request import Request, RequestInfo, Retention, SamplingParams
from openai_kv.simulate.readers import read_trace
from openai_kv.simulate.trace import Trace

BLOCK = 4


def finished(
    prompt: Sequence[int], answer: Sequence[int] = (), *, namespace: str = "", session: str | None = None, at: float = 0
) -> Request:
    info = RequestInfo("r", len(prompt), namespace, session_id=session, kind="chat", turn=2)
    request = Request(info, tuple(prompt), SamplingParams(max_tokens=9), arrival_time=at, first_scheduled_time=at)
    request.token_ids += answer
    request.num_computed_tokens = max(0, len(request.token_ids) - 1)  # the last token is never computed
    return request


def record(path: Path, *requests: Request) -> None:
    with open_recording(str(path)) as file:
        recorder = TraceRecorder(file, BLOCK)
        for request in requests:
            recorder.record(request)


def recorded(path: Path, *requests: Request) -> Trace:
    record(path, *requests)
    return read_trace(path)


def test_a_replay_sees_the_prompt_and_what_the_answer_leaves(tmp_path: Path) -> None:
    first = finished(range(10), range(10, 17), session="s", at=5)
    trace = recorded(tmp_path / "t", first, finished(range(18), at=7))
    one, two = trace.requests
    assert (trace.format, trace.block_tokens) == ("openai-kv", BLOCK)
    assert (len(one.hash_ids), len(one.answer_ids)) == (2, 2)
    assert two.hash_ids == one.stored_ids
    assert (one.input_tokens, one.output_tokens, one.kind, one.turn) == (10, 7, "chat", 2)
    assert two.time - one.time == pytest.approx(2)
    assert (one.session_id is not None, two.session_id) == (True, None)


def test_requests_are_in_the_order_of_their_arrival(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", finished(range(8), at=3), finished(range(4), at=1))
    assert [request.input_tokens for request in trace.requests] == [4, 8]


def test_what_bypasses_the_cache_is_left_out(tmp_path: Path) -> None:
    bypassing = finished(range(4))
    bypassing.info = replace(bypassing.info, retention=Retention(explicit=True))
    assert len(recorded(tmp_path / "t", finished(range(8)), bypassing).requests) == 1


def test_namespaces_share_nothing(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "t", finished(range(8)), finished(range(8), namespace="other"))
    assert trace.num_different_blocks == 4


def test_starts_of_the_server_share_nothing(tmp_path: Path) -> None:
    """Each has a key of its own, so that nobody can look up a prompt by its hash."""
    path = tmp_path / "t"
    record(path, finished(range(8)))
    assert recorded(path, finished(range(8))).num_different_blocks == 4
    ids = [json.loads(line).get("hash_ids") for line in path.read_text().splitlines()]
    assert ids[1] != ids[3]


def test_nothing_of_the_text_is_written(tmp_path: Path) -> None:
    path = tmp_path / "t"
    record(path, finished([90001] * 8, [90002], namespace="salt", session="alice"))
    assert not any(word in path.read_text() for word in ("90001", "90002", "salt", "alice"))


def test_what_never_ran_is_left_out(tmp_path: Path) -> None:
    waiting = finished(range(8))
    waiting.first_scheduled_time = None
    assert recorded(tmp_path / "t", waiting).requests == ()


def test_a_full_disk_ends_the_recording_only(caplog: pytest.LogCaptureFixture) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(28, "No space left on device")

    recorder = TraceRecorder(Full(), BLOCK)
    recorder.record(finished(range(8)))
    assert len(caplog.records) == 1


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record_trace"):
        open_recording(str(tmp_path / "no" / "t"))
