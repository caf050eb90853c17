from pathlib import Path

from tests.server.attack import attack


async def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    """A few examples; `python -m tests.server.attack` runs thousands."""
    report = await attack(tmp_path, max_examples=5, seed=1, phases=("fuzzing",))
    assert (report.exit_code, report.unexpected, report.referenced) == (0, 0, 0), report.output
    assert report.statuses[200] > 10 and report.statuses[400] > 10
