"""The live comparison without its heavy part: the schedule, the driver on a fake model's server, the report."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import eviction
from benchmarks.conversations import Habits, observe
from benchmarks.drive import Answer, Drive, drive
from benchmarks.live_report import kendall_tau
from benchmarks.workload import Mix, Turn, longest_chat, schedule, working_set
from openai_kv.simulate.trace import TraceRequest
from tests.harness import Shape
from tests.server.serving import live_site

TRACE = Path(__file__).parent.parent / "data" / "conversation_first300.jsonl"
HABITS = Habits(gaps=(30.0, 60.0), turns=(1, 3))
MIX = Mix(
    conversations=6, scans=2, systems=2, system_words=4, message_words=(1, 3), scan_words=(9, 12), answer_tokens=4
)
SHAPE = Shape(num_blocks=4096, block_size=4, max_num_seqs=8, max_num_batched_tokens=512, max_model_len=2048)


def request(time: float, *hash_ids: int) -> TraceRequest:
    return TraceRequest(time, hash_ids, 512 * len(hash_ids), 1)


def test_conversations_are_read_off_their_blocks() -> None:
    """The last block of a prompt never comes back, and the first is everybody's."""
    trace = [request(0, 0, 1, 2), request(5, 0, 9), request(9, 0, 1, 3, 4), request(29, 0, 1, 3, 5), request(30, 0, 7)]
    assert observe(trace) == Habits(gaps=(9.0, 20.0), turns=(3, 1, 1))
    with pytest.raises(ValueError, match="continues"):
        observe(trace[:2])


def test_a_schedule_is_the_seeds_alone_and_in_order() -> None:
    turns = schedule(MIX, HABITS, seed=3)
    assert turns == schedule(MIX, HABITS, seed=3) != schedule(MIX, HABITS, seed=4)
    assert [turn.due for turn in turns] == sorted(turn.due for turn in turns)
    chats = [[turn for turn in turns if turn.conversation == number] for number in range(8)]
    assert all([turn.turn for turn in chat] in ([1], [1, 2, 3]) for chat in chats)
    assert all(len({turn.system for turn in chat}) == 1 for chat in chats)
    assert len({turn.system for turn in turns}) == 2
    assert len(turns) < longest_chat(turns, 4) < working_set(turns, 4)


async def counts(turns: Sequence[Turn], concurrency: int) -> tuple[Drive, int]:
    """The drive, and the tokens that the server says were cached."""
    async with live_site(SHAPE) as (running, url):
        done = await drive(url, turns, model="fake", answer_tokens=4, concurrency=concurrency)
        await running.settle()
        return done, sum((await running.engine.stats()).cache.hit_tokens.values())


async def test_the_driver_counts_what_the_server_counts() -> None:
    turns = schedule(MIX, HABITS, seed=3)
    one, hit_tokens = await counts(turns, concurrency=1)
    assert sum(answer.cached_tokens for answer in one.answers) == hit_tokens > 0
    assert one.evictions == 0
    several, _ = await counts(turns, concurrency=4)
    assert [a.prompt_tokens for a in several.answers] == [a.prompt_tokens for a in one.answers]


async def test_a_conversation_finds_its_own_past() -> None:
    """Each turn hits the whole prompt of the one before it: the history holds the server's own answers."""
    turns = [Turn(due, 0, number, "Be brief.", f"Question {number}?") for number, due in enumerate((1.0, 2.0, 3.0), 1)]
    done, _ = await counts(turns, concurrency=4)
    for before, after in zip(done.answers, done.answers[1:], strict=False):
        assert after.cached_tokens >= before.prompt_tokens > before.cached_tokens


def test_kendalls_tau() -> None:
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1
    assert kendall_tau([1, 2, 3], [1, 3, 2]) == pytest.approx(1 / 3)
    assert kendall_tau([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 6**0.5)
    assert kendall_tau([1, 2], [5, 5]) == 0


def test_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay has no word on h2o, as a trace has no attention weights."""
    cached = iter((32, 0, 64))

    def run(plan: eviction.Plan, policy: str, turns: Sequence[Turn], recording: Path) -> Drive:
        shutil.copy(TRACE, recording)
        return Drive((Answer(prompt_tokens=96, cached_tokens=next(cached), ttft=0.5),) * len(turns), 2.0, 7)

    monkeypatch.setattr(eviction, "run", run)
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    page.write_text("Before.\n<!-- live -->\nold\n<!-- end -->\nAfter.\n")
    policies = [word for policy in ("lru", "h2o", "arc") for word in ("--policy", policy)]
    eviction.main(["--trace", str(TRACE), *policies, "--json", str(out), "--page", str(page)])
    document = json.loads(out.read_text())
    ratios = {row["policy"]: (row["block_hit_ratio"], row["simulated_block_hit_ratio"]) for row in document["results"]}
    assert {policy: live for policy, (live, _) in ratios.items()} == {
        "lru": pytest.approx(2 / 6, abs=1e-5),
        "h2o": 0,
        "arc": pytest.approx(4 / 6, abs=1e-5),
    }
    assert ratios["h2o"][1] is None
    assert ratios["lru"][1] and ratios["arc"][1]
    assert "live:      arc > lru\n" in capsys.readouterr().out
    text = page.read_text()
    assert text.index("| arc |") < text.index("| lru |") < text.index("| h2o |") < text.index("After.")
    assert "old" not in text


def test_a_pool_too_small_for_a_chat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a larger share"):
        eviction.main(["--trace", str(TRACE), "--conversations", "2", "--scans", "1"])


def test_message_lengths_are_those_of_the_mix() -> None:
    turns = schedule(replace(MIX, scans=0), HABITS, seed=1)
    assert {len(turn.message.split()) for turn in turns} <= {1, 2, 3}
