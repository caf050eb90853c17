"""What an engine records, `simulate` replays with the hits the engine had."""

from pathlib import Path

from openai_kv.recording import TraceRecorder, open_recording
from openai_kv.simulate.result import Case
from openai_kv.simulate.run_case import PolicySource, run_case
from tests.harness import Run, Shape, build_engine, fake_runner, make_request


def test_a_chat_hits_the_same_blocks_in_the_replay(tmp_path: Path) -> None:
    path, shape = tmp_path / "recorded.jsonl", Shape(num_blocks=256)
    cached_blocks = 0
    with open_recording(str(path)) as file:
        engine = build_engine(fake_runner(shape), shape, recorder=TraceRecorder(file, shape.block_size))
        run = Run(engine)
        for user in range(3):
            text = [*range(10, 23), user]
            for turn in range(4):
                request = make_request(text, max_tokens=7)
                (answer,) = run.generate(request)
                cached_blocks += run.last(request).cached_tokens // shape.block_size
                text += [*answer, 100 + turn]
    tally = run_case(Case(str(path), "lru", 256), PolicySource()).tally
    assert tally.requests == 12
    assert tally.hit_blocks == cached_blocks > 30
