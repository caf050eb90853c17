"""What benchmarks of the disk tier do to its files, and see of them: wherever it puts them."""

from pathlib import Path
from random import Random

from benchmarks.tier_kill import newest
from benchmarks.tier_subject import damage, records, unfinished
from openai_kv.tiers.disk import PART, DiskTier
from openai_kv.tiers.tier import TierInfo

KEYS = [bytes([number]) * 32 for number in range(9)]


def started(folder: Path) -> DiskTier:
    tier = DiskTier(str(folder))
    tier.start(TierInfo("ab" * 32, 100, 86400.0))
    return tier


def test_records_are_damaged_in_as_many_ways_as_it_says(tmp_path: Path) -> None:
    tier = started(tmp_path)
    tier.put(dict.fromkeys(KEYS, b"x" * 100))
    assert len(records(tmp_path)) == len(KEYS)
    kinds = damage(tmp_path, Random(1), 6)
    assert sum(kinds.values()) == 6 and set(kinds) == {"cut", "deleted", "flipped"}
    found = tier.get(KEYS)
    assert sum(record != b"x" * 100 for record in found) == 6
    assert found.count(None) == kinds["deleted"] == len(KEYS) - len(records(tmp_path))


def test_an_unfinished_file_and_the_change_of_its_folder_are_seen(tmp_path: Path) -> None:
    started(tmp_path).put({KEYS[0]: b"x"})
    (path,), before = records(tmp_path), newest(tmp_path)
    assert not unfinished(tmp_path)
    part = path.with_name(path.name + PART)
    part.write_bytes(b"")
    assert unfinished(tmp_path) == {part}
    assert newest(tmp_path) > before > 0
