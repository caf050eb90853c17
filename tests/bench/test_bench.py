"""The command against real servers: ours with a model that computes nothing, and some that misbehave."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from openai_kv import cli
from openai_kv.bench.client import BadReply, Record
from openai_kv.bench.reply import Reply
from openai_kv.bench.result import Result, percentile
from openai_kv.bench.workloads import WORKLOADS, Phase, Scale
from openai_kv.bench.writer import Writer
from tests.harness import Shape
from tests.server.serving import live_site

SHAPE = Shape(num_blocks=4096, block_size=4, max_num_seqs=32, max_num_batched_tokens=4096, max_model_len=8192)
SMALL = ["--concurrency", "2", "--prefix-words", "50", "--documents", "3"]
DOCS = Path(__file__).parents[2] / "docs" / "bench.md"


def make(name: str, seed: str = "0", scale: Scale = Scale()) -> list[Phase]:  # noqa: B008
    return list(WORKLOADS[name](Writer(seed), scale))


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(cli.main, ["bench", *arguments])


@pytest.mark.parametrize("error", [{"message": "too long"}, {"code": 1, "message": "too long"}, "too long"])
def test_an_error_in_a_stream_is_told(error: object) -> None:
    with pytest.raises(BadReply, match=r"^too long$"):
        Record().take({"error": error})


@pytest.mark.parametrize("event", [{"error": None}, {"choices": None}, {"choices": [{"delta": None}]}, {"usage": None}])
def test_an_event_without_text_is_none(event: dict[str, Any]) -> None:
    record = Record()
    record.take(event)
    assert record.arrivals == []


def test_prompts_follow_from_the_seed_alone() -> None:
    for name in WORKLOADS:
        assert make(name) == make(name)
        assert make(name) != make(name, "1")


def test_what_is_shared_and_what_is_not() -> None:
    def systems(name: str) -> list[str]:
        return [talk.system for phase in make(name) for talk in phase.conversations]

    def first(phase: Phase) -> str:
        return phase.conversations[-1].questions[0]

    assert len(set(systems("prefix"))) == len(set(systems("herd"))) == 1
    assert len(set(systems("turns"))) == 8
    _, warm, repeat, shared = make("prefix")
    assert first(warm) == first(repeat) != first(shared)
    pressure = make("pressure", scale=Scale(documents=5))
    assert {phase.num_requests for phase in pressure} == {5}
    assert len({first(phase) for phase in pressure}) == len(pressure)
    assert len(set(systems("pressure"))) == Scale().documents


async def test_every_workload_runs_and_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = tmp_path / "out.json", tmp_path / "out.svg"
    async with live_site(SHAPE) as (server, url):
        flags = ("--json", str(files[0]), "--plot", str(files[1]))
        assert await run("--base-url", f"{url}/v1", *SMALL, *flags) == 0
        stats = (await server.engine.stats()).cache
        await server.settle()
    rows = {row["label"]: row for row in json.loads(files[0].read_text())["results"]}
    assert rows["single"]["output_tokens"] == 3 * 128
    assert rows["turns of 2"]["requests"] == 10
    assert rows["prefix cold"]["cached_tokens"] < 50 < rows["prefix warm"]["cached_tokens"] / 2
    assert rows["prefix repeat"]["cached_tokens"] == rows["prefix repeat"]["prompt_tokens"]
    assert sum(row["prompt_tokens"] for row in rows.values()) == stats.prompt_tokens
    assert sum(row["failed"] for row in rows.values()) == 0
    assert "herd of 4" in capsys.readouterr().out
    assert b"<svg" in files[1].read_bytes()


async def test_each_round_has_new_prompts(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    async with live_site(SHAPE) as (_, url):
        assert await run("prefix", "--base-url", f"{url}/v1", *SMALL, "--rounds", "2", "--json", str(file)) == 0
    rows = [row for row in json.loads(file.read_text())["results"] if row["label"] == "prefix cold"]
    assert [row["round"] for row in rows] == [0, 1]
    assert all(row["cached_tokens"] < 50 for row in rows)


async def test_failures_are_counted_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "out.json"
    async with live_site(SHAPE, server__max_model_len=64) as (server, url):
        assert await run("single", "--base-url", f"{url}/v1", "--model", "other", "--json", str(file)) == 1
        await server.settle()
    [row] = json.loads(file.read_text())["results"]
    assert (row["requests"], row["failed"], row["ttft_p50_ms"]) == (3, 3, None)
    assert "3 requests failed, first: HTTP 404" in capsys.readouterr().err


async def test_the_key_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "secret")
    monkeypatch.setenv("BENCH_KEY", "secret")
    async with live_site(SHAPE) as (_, url):
        base = ("single", "--base-url", f"{url}/v1", *SMALL)
        assert await run(*base, "--api-key-env", "NOTHING") == 2
        assert "HTTP 401" in capsys.readouterr().err
        assert await run("single", "--base-url", url, *SMALL) == 2
        assert re.search(rf"{url}/models: HTTP \d+.*; most base URLs end in /v1$", capsys.readouterr().err.strip())
        assert await run(*base, "--api-key-env", "BENCH_KEY") == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sinle"], "no workload 'sinle'; did you mean single?"),
        (["--base-url", "http://127.0.0.1:9/v1"], "no server at http://127.0.0.1:9/v1"),
        (["--base-url", "nowhere"], "no server at nowhere"),
        (["--json", "/no/such/folder/x.json"], "no such folder"),
        (["--plot", "x.pdf"], "neither .png nor .svg"),
        (["--rounds", "0"], "not a whole number above 0"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_the_figures_of_a_phase() -> None:
    replies = (
        Reply(10.0, ttft=0.5, total=2.0, gaps=(0.5, 1.0), prompt_tokens=7, completion_tokens=3, cached_tokens=4),
        Reply(11.0, ttft=1.5, total=3.0, gaps=(), prompt_tokens=5, completion_tokens=1),
        Reply(10.5, total=0.1, error="no"),
    )
    result = Result("x", 0, replies)
    assert (result.wall, result.output_rate, result.cached_tokens) == (4.0, 1.0, 4)
    assert percentile(result.ttfts, 50) == 1.0
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0


def test_the_fields_are_documented(tmp_path: Path) -> None:
    from openai_kv.bench.report import record

    documented = set(re.findall(r"`(\w+)`", DOCS.read_text(encoding="utf-8")))
    fields: dict[str, Any] = record(Result("x", 0, (Reply(0.0, ttft=1.0, total=1.0),)))
    assert fields.keys() <= documented
    assert WORKLOADS.keys() <= documented
