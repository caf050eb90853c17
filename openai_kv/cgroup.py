"""What the limits of cgroups, version 1 and 2, leave to this process of its machine: in a container, or a service."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

# the limit, what is used, and of that what could be dropped (memory.stat): pages of files that nobody asked for lately
MEMORY_V2 = ("memory.max", "memory.current", "inactive_file")
MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """`root`: where cgroups are mounted; `own`: says which ones this process is in. Elsewhere than on Linux in none."""

    root: Path = Path("/sys/fs/cgroup")
    own: Path = Path("/proc/self/cgroup")

    def free_memory(self) -> int | None:
        """Bytes until the nearest limit; None: there is none."""
        return min((free for folder in self._folders("memory") for free in _free_memory(folder)), default=None)

    def cpus(self) -> float | None:
        """How many may be busy all the time; None: there is no limit."""
        return min((cpus for folder in self._folders("cpu") for cpus in _cpus(folder)), default=None)

    def _folders(self, controller: str) -> Iterator[Path]:
        """Its own and those around it. A container may see its own as the root, whatever its path says."""
        for line in _text(self.own).splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            base = self.root / controller if controllers else self.root
            folder = base / path.lstrip("/")
            yield from (place for place in (folder, *folder.parents) if place.is_relative_to(base))


def num_cpus() -> int:
    """Those that this process may run on, and as many threads as its cgroup lets run."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(known, ceil(Cgroup().cpus() or known))


def _free_memory(folder: Path) -> Iterator[int]:
    for limit, used, droppable in (MEMORY_V2, MEMORY_V1):
        most = _text(folder / limit).strip()
        if most.isdigit():  # not "max"
            stat = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines())
            yield max(0, int(most) - int(_text(folder / used) or 0) + int(stat.get(droppable, 0)))


def _cpus(folder: Path) -> Iterator[float]:
    version_1 = (_text(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    quota, period = (_text(folder / "cpu.max") or " ".join(version_1)).split() or ("max", "1")
    if quota.isdigit():  # neither "max" nor -1
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
