import errno
import multiprocessing
import os
import shutil
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

from openai_kv.errors import ConfigError, CorruptRecordError, TierFullError
from openai_kv.tiers.codec import decode, encode
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.tier import TierInfo

INFO = TierInfo("ab" * 32, 4000, 86400.0)
SIZE = 100_000


def key(number: int) -> bytes:
    return number.to_bytes(32, "little")


def record(number: int) -> bytes:
    return encode(key(number), (number,), Random(number).randbytes(SIZE))


def started(folder: Path, max_bytes: int = 2**30) -> DiskTier:
    tier = DiskTier(str(folder), max_bytes)
    tier.start(INFO)
    return tier


def path_of(tier: DiskTier, number: int) -> Path:
    return tier._path(tier._name(key(number)))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_restart_finds_everything_in_the_same_order(tmp_path: Path) -> None:
    first = started(tmp_path)
    for number in range(5):
        first.put({key(number): record(number)})
        os.utime(path_of(first, number), (time.time() - 100 + number,) * 2)
    first.get([key(0)])
    again = started(tmp_path, 3 * 102400)
    assert again.contains([key(number) for number in range(5)]) == [True, False, False, True, True]
    assert again.get([key(3)]) == [record(3)]
    assert len(files(tmp_path)) == again.usage().records == 3


def test_what_expired_while_nobody_ran_is_gone(tmp_path: Path) -> None:
    tier = started(tmp_path)
    tier.put({key(0): record(0), key(1): record(1)})
    os.utime(path_of(tier, 0), (time.time() - 90000,) * 2)
    assert started(tmp_path).contains([key(0), key(1)]) == [False, True]


def test_unfinished_writes_and_foreign_files_do_no_harm(tmp_path: Path) -> None:
    started(tmp_path).put({key(0): record(0)})
    folder = files(tmp_path)[0].parent
    (folder / (key(256).hex() + ".part")).write_bytes(b"half")
    (folder / "README").write_text("mine")
    (tmp_path / "stray").write_text("mine too")
    assert started(tmp_path).usage().records == 1
    assert {path.name for path in files(tmp_path)} == {key(0).hex(), "README", "stray"}


def test_a_volume_of_its_own_has_folders_that_are_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started(tmp_path).put({key(0): record(0)})
    (tmp_path / "lost+found").mkdir(0o700)
    scan = os.scandir

    def forbidding(path: os.PathLike[str]) -> object:
        if Path(path).name == "lost+found":  # root's; tests may run as root, whom no mode keeps out
            raise PermissionError(errno.EACCES, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    assert started(tmp_path).usage().records == 1


@pytest.mark.parametrize("name", ["f" * 64, "f" * 64 + ".part"])
def test_a_folder_with_the_name_of_a_record_is_left_alone(tmp_path: Path, name: str) -> None:
    tier = started(tmp_path)
    tier.put({key(1): record(1)})
    strange = path_of(tier, 1).parent / name
    strange.mkdir()
    again = started(tmp_path)
    assert again.usage().records == 1
    again.clear()
    assert again.usage().records == 0 and strange.is_dir()


def test_a_file_that_vanished_is_a_miss(tmp_path: Path) -> None:
    tier = started(tmp_path)
    tier.put({key(0): record(0)})
    files(tmp_path)[0].unlink()
    assert tier.get([key(0)]) == [None]
    assert tier.contains([key(0)]) == [False]
    assert tier.usage().num_bytes == 0


def test_a_folder_that_vanished_is_made_again(tmp_path: Path) -> None:
    tier = started(tmp_path / "blocks")
    tier.put({key(0): record(0)})
    shutil.rmtree(tmp_path / "blocks")
    tier.put({key(1): record(1)})
    assert tier.get([key(0), key(1)]) == [None, record(1)]


def test_a_truncated_file_is_no_record(tmp_path: Path) -> None:
    tier = started(tmp_path)
    tier.put({key(7): record(7)})
    os.truncate(files(tmp_path)[0], 50_000)
    (found,) = started(tmp_path).get([key(7)])
    assert found is not None
    with pytest.raises(CorruptRecordError):
        decode(found, key(7), (7,), SIZE)


def test_models_in_one_folder_share_its_bytes_and_nothing_else(tmp_path: Path) -> None:
    other = DiskTier(str(tmp_path), 3 * 102400)
    other.start(TierInfo("cd" * 32, 4000, 86400.0))
    other.put({key(0): record(0), key(1): record(1)})
    tier = started(tmp_path, 3 * 102400)
    assert tier.contains([key(0)]) == [False]
    assert tier.usage().records == 2
    tier.put({key(0): record(2), key(3): record(3)})
    assert tier.usage().records == 3, "the other's oldest made room"
    tier.clear()
    assert tier.usage().records == 1 and tier.contains([key(0), key(3)]) == [False, False]
    other.start(TierInfo("cd" * 32, 4000, 86400.0))
    assert other.get([key(0), key(1)]) == [None, record(1)]


def unreadable(self: Path) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_file_that_cannot_be_read_is_a_damaged_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = started(tmp_path)
    tier.put({key(number): record(number) for number in range(5)})
    for number in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", unreadable)
            assert tier.get([key(0)]) == [b""]
        assert tier.get([key(number)]) == [record(number)], "the others are there"
    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with pytest.raises(OSError, match="Input/output"):
        tier.get([key(number) for number in range(5)])


def test_what_cannot_be_removed_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    tier = started(tmp_path)
    tier.put({key(0): record(0)})
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", stuck)
        with pytest.raises(OSError, match="Input/output"):
            tier.remove([key(0)])
    assert tier.usage().records == 1 and len(files(tmp_path)) == 1
    tier.remove([key(0)])
    assert tier.usage().num_bytes == 0 and not files(tmp_path)


def test_a_full_disk_costs_the_oldest_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = started(tmp_path)
    tier.put({key(0): record(0), key(1): record(1)})

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(TierFullError, match="No space left"):
            tier.put({key(2): record(2)})
    assert [path.name for path in files(tmp_path)] == [key(1).hex()]
    tier.put({key(2): record(2)})
    assert tier.contains([key(0), key(1), key(2)]) == [False, True, True]


def test_another_error_of_the_disk_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Path, data: bytes) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    tier = started(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", broken)
    with pytest.raises(OSError, match="Input/output"):
        tier.put({key(2): record(2)})
    assert tier.usage().records == 0


def test_a_record_larger_than_the_tier_is_refused(tmp_path: Path) -> None:
    tier = started(tmp_path, 50_000)
    with pytest.raises(TierFullError):
        tier.put({key(0): record(0)})
    assert files(tmp_path) == []


def test_bad_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"plugins\.disk\.path"):
        DiskTier(str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="max_bytes"):
        DiskTier(str(tmp_path), 0)


def write_for_ever(folder: Path, seed: int, told: Connection) -> None:
    tier = started(folder, 20 * 102400)
    random = Random(seed)
    while True:
        number = random.randrange(50)
        tier.put({key(number): record(number)})
        tier.get([key(random.randrange(50))])
        told.send_bytes(b".")


@pytest.mark.parametrize("seed", range(3))
def test_a_process_killed_while_it_writes_leaves_only_whole_records(tmp_path: Path, seed: int) -> None:
    context = multiprocessing.get_context("fork")
    told, telling = context.Pipe(duplex=False)
    process = context.Process(target=write_for_ever, args=(tmp_path, seed, telling), daemon=True)
    process.start()
    for _ in range(5 + 20 * seed):
        told.recv_bytes()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    again = started(tmp_path, 20 * 102400)
    known = [number for number in range(50) if again.contains([key(number)])[0]]
    assert len(known) >= 3
    for number in known:
        (found,) = again.get([key(number)])
        assert found is not None
        decode(found, key(number), (number,), SIZE)
    assert not [path for path in files(tmp_path) if path.suffix]
