"""Builds the C++ attention operator on first use and keeps it in a cache folder."""

import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import torch
from filelock import FileLock
from torch.utils.cpp_extension import include_paths, library_paths

from openai_kv.cgroup import num_cpus
from openai_kv.errors import OperatorBuildError

COMMON_FLAGS = ("-std=c++20", "-fPIC", "-O3", "-DNDEBUG", "-Wno-psabi")
AVX512_FLAGS = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c")


@dataclass(frozen=True, slots=True)
class Unit:
    """One compiler run. Each instruction set has a unit of its own; the operator picks one when it runs."""

    name: str
    source: str
    flags: tuple[str, ...]


def units(machine: str) -> tuple[Unit, ...]:
    """What is compiled for a machine as platform.machine() names it."""
    # OpenMP as a flag of the compiler only: linked, it would be a second thread pool beside torch's.
    operator = Unit("operator", "operator.cpp", ("-fopenmp",))
    generic = _kernels("generic", 4, ())
    if machine not in ("x86_64", "AMD64"):
        return operator, *generic
    avx2 = _kernels("avx2", 8, ("-mavx2", "-mfma", "-mf16c"))
    return operator, *generic, *avx2, *_kernels("avx512", 16, AVX512_FLAGS, ("-mavx512vnni",))


def _kernels(name: str, width: int, flags: tuple[str, ...], vnni_flags: tuple[str, ...] = ()) -> tuple[Unit, Unit]:
    common = (f"-DWIDTH={width}", *flags)
    return (
        Unit(name, "kernels.cpp", (f"-DKERNELS=kernels_{name}", *common)),
        Unit(f"quantized_{name}", "quantized_kernels.cpp", (f"-DKERNELS=quantized_{name}", *common, *vnni_flags)),
    )


def build_operator(cache_dir: Path, progress: Callable[[str], None]) -> Path:
    """The operator's shared library in `cache_dir`, compiled if it isn't there yet (about a minute on two cores).

    Libraries are told apart by source, torch, machine and flags, and by the compiler. Without a compiler any that fits
    the rest will do: an image may bring one from its builder stage. `progress` gets a line when there is work to do.
    Raises OperatorBuildError, saying why.
    """
    with as_file(files("openai_kv.model_runner") / "csrc") as sources:
        folder = cache_dir / f"attention-{_fingerprint(sources)}"
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        if shutil.which(compiler[0]) is None:
            return _any_library(folder, compiler[0])
        library = folder / f"{_digest(_run([*compiler, '--version']))}.so"
        if not library.exists():
            _build_locked(compiler, sources, library, progress)
        return library


def load_operator(library: Path) -> Callable[..., torch.Tensor]:
    """torch.ops.openai_kv.paged_attention of a built library; one per process."""
    if not hasattr(torch.ops.openai_kv, "paged_attention"):
        try:
            torch.ops.load_library(library)
        except OSError as error:
            raise OperatorBuildError(f"the attention operator can't be loaded: {error}") from error
    operator: Callable[..., torch.Tensor] = torch.ops.openai_kv.paged_attention.default
    return operator


def _fingerprint(sources: Path) -> str:
    parts = [path.read_text() for path in sorted(sources.iterdir()) if path.suffix in (".cpp", ".h")]
    machine = platform.machine()
    return _digest(*parts, torch.__version__, machine, repr(COMMON_FLAGS), repr(units(machine)))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _any_library(folder: Path, compiler: str) -> Path:
    built = sorted(folder.glob("*.so"))
    if not built:
        raise OperatorBuildError(f"no C++ compiler: {compiler!r} is not there (install g++, or name another in CXX)")
    return built[0]


def _build_locked(compiler: list[str], sources: Path, library: Path, progress: Callable[[str], None]) -> None:
    """A library appears whole or not at all; a second process waits for the first, a killed one leaves no lock."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(library.with_suffix(".lock")):
            if not library.exists():
                with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
                    _compile(compiler, sources, Path(scratch), progress).replace(library)
    except OSError as error:
        raise OperatorBuildError(f"the attention operator can't be built in {library.parent}: {error}") from error


def _compile(compiler: list[str], sources: Path, scratch: Path, progress: Callable[[str], None]) -> Path:
    todo = units(platform.machine())
    flags = [*COMMON_FLAGS, *(f"-I{path}" for path in include_paths())]
    objects = [str(scratch / f"{unit.name}.o") for unit in todo]
    progress(f"compiling the operators with {compiler[0]}: takes a minute or two, once")
    commands = [
        [*compiler, *flags, *unit.flags, "-c", str(sources / unit.source), "-o", to]
        for unit, to in zip(todo, objects, strict=True)
    ]
    for number in _run_all(commands):
        progress(f"compiling the operators: {number} of {len(todo)} parts")
    library = scratch / "operator.so"
    libraries = [*(f"-L{path}" for path in library_paths()), "-ltorch", "-ltorch_cpu", "-lc10"]
    _run([*compiler, "-shared", *objects, *libraries, "-o", str(library)])
    return library


def _run_all(commands: list[list[str]]) -> Iterator[int]:
    """How many have ended, each time one does; no more run at once than there are cores, and none after a failure."""
    pool = ThreadPoolExecutor(num_cpus())

    def run(command: list[str]) -> None:
        try:
            _run(command)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # here, or this thread begins the next one meanwhile
            raise

    try:
        for number, done in enumerate(as_completed([pool.submit(run, command) for command in commands]), start=1):
            done.result()
            yield number
    finally:
        pool.shutdown(cancel_futures=True)


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def _output(process: subprocess.Popen[str]) -> str:
    """Raises OperatorBuildError, and KeyboardInterrupt where Ctrl-C, which goes to children too, ended the compiler."""
    output, _ = process.communicate()
    if -process.returncode in (signal.SIGINT, signal.SIGTERM):
        raise KeyboardInterrupt(f"the compiler was stopped by {signal.Signals(-process.returncode).name}")
    if process.returncode != 0:
        lines = output.strip().splitlines() or ["no message"]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise OperatorBuildError(f"the C++ compiler failed with status {process.returncode}: {reason}")
    return output


def _run(command: list[str]) -> str:
    with _start(command) as process:
        return _output(process)
