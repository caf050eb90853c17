import os
from pathlib import Path

import pytest

from openai_kv import cgroup
from openai_kv.cgroup import Cgroup, num_cpus

V1 = "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n"


def make(folder: Path, own: str, files: dict[str, str]) -> Cgroup:
    (folder / "own").write_text(own)
    for name, text in files.items():
        path = folder / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return Cgroup(folder / "root", folder / "own")


def test_without_limits_there_are_none(tmp_path: Path) -> None:
    group = make(tmp_path, "0::/a\n", {"a/memory.max": "max", "a/memory.current": "7", "a/cpu.max": "max 100000"})
    assert (group.free_memory(), group.cpus()) == (None, None)
    group = make(tmp_path, V1, {"cpu/docker/abc/cpu.cfs_quota_us": "-1", "cpu/docker/abc/cpu.cfs_period_us": "100000"})
    assert (group.free_memory(), group.cpus()) == (None, None)
    assert Cgroup(tmp_path / "none", tmp_path / "neither").free_memory() is None


def test_memory_is_what_the_nearest_limit_leaves(tmp_path: Path) -> None:
    files = {
        "a/memory.max": "1000",
        "a/memory.current": "700",
        "a/memory.stat": "anon 500\ninactive_file 150",
        "a/b/memory.max": "max",
        "a/b/memory.current": "20",
    }
    assert make(tmp_path, "0::/a/b\n", files).free_memory() == 1000 - 700 + 150
    files |= {"a/b/memory.max": "100"}
    assert make(tmp_path, "0::/a/b\n", files).free_memory() == 80
    files |= {"a/b/memory.current": "120"}
    assert make(tmp_path, "0::/a/b\n", files).free_memory() == 0


def test_version_1_in_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "1000",
        "memory/memory.usage_in_bytes": "400",
        "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100",
        "cpu/cpu.cfs_quota_us": "150000",
        "cpu/cpu.cfs_period_us": "100000",
    }
    group = make(tmp_path, V1, files)
    assert (group.free_memory(), group.cpus()) == (700, 1.5)


@pytest.mark.parametrize(
    ("affinity", "limit", "expected"), [(8, "max", 8), (8, "150000", 2), (8, "50000", 1), (2, "400000", 2)]
)
def test_cpus_are_those_of_the_affinity_and_of_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: int, limit: str, expected: int
) -> None:
    group = make(tmp_path, "0::/\n", {"cpu.max": f"{limit} 100000"})
    monkeypatch.setattr(cgroup, "Cgroup", lambda: group)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(affinity)))
    assert num_cpus() == expected
