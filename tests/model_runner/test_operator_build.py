import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from openai_kv.errors import OperatorBuildError
from openai_kv.model_runner import operator_build
from openai_kv.model_runner.operator_build import build_operator, units

FAKE_COMPILER = """#!{python}
import os, pathlib, signal, sys, time
with open({log!r}, "a") as log:
    print(*sys.argv[1:], file=log)
if "--version" in sys.argv:
    print({version!r})
elif {slow!r} in sys.argv:
    end = time.monotonic() + 60
    while not pathlib.Path({log!r} + ".go").exists():
        if time.monotonic() > end:
            sys.exit("error: nobody heard of the others")
        time.sleep(0.01)
    pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("object")
elif {signal}:
    signal.signal({signal}, signal.SIG_DFL)
    os.kill(os.getpid(), {signal})
elif {fails}:
    sys.exit("kernels.cpp:7: error: no such vector")
else:
    pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_text("object")
"""


class Compiler:
    """Stands for c++: notes what it was asked, and writes a text where a compiler writes an object."""

    def __init__(self, folder: Path) -> None:
        self.path, self.log = folder / "fake-c++", folder / "log"
        self.install()

    def install(self, *, version: str = "fake 1.0", fails: bool = False, slow: str = "", signal: int = 0) -> None:
        text = FAKE_COMPILER.format(
            python=sys.executable,
            log=str(self.log),
            version=version,
            fails=fails,
            slow=slow or "--none",
            signal=signal,
        )
        self.path.write_text(text)
        self.path.chmod(stat.S_IRWXU)

    def compilations(self) -> int:
        return sum("-c" in line.split() for line in self.log.read_text().splitlines())


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler(tmp_path)
    monkeypatch.setenv("CXX", str(compiler.path))
    return compiler


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def ignore(line: str) -> None: ...


def test_each_instruction_set_is_compiled_once(
    compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    lines: list[str] = []
    library = build_operator(cache, lines.append)
    assert library.read_text() == "object"
    assert compiler.compilations() == 7
    assert lines[0].startswith("compiling the operators with ") and lines[0].endswith("takes a minute or two, once")
    assert lines[-1].endswith("7 of 7 parts")
    assert build_operator(cache, lines.append) == library
    assert compiler.compilations() == 7
    assert len(lines) == 8


def test_a_part_that_is_done_is_told_while_another_compiles(
    compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_build, "num_cpus", lambda: 2)
    compiler.install(slow="-fopenmp")  # the first unit, which ends only when all others were told
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        if len(lines) == len(units(os.uname().machine)):
            compiler.log.with_name("log.go").touch()

    build_operator(cache, note)
    assert [line.partition(": ")[2] for line in lines[1:]] == [
        f"{number} of {len(lines) - 1} parts" for number in range(1, len(lines))
    ]


def test_only_the_library_and_its_lock_are_left(compiler: Compiler, cache: Path) -> None:
    library = build_operator(cache, ignore)
    assert {path.suffix for path in library.parent.iterdir()} <= {".so", ".lock"}


def test_another_compiler_builds_again(compiler: Compiler, cache: Path) -> None:
    first = build_operator(cache, ignore)
    compiler.install(version="fake 2.0")
    assert build_operator(cache, ignore) != first
    assert compiler.compilations() == 2 * len(units(os.uname().machine))


def test_another_torch_builds_again(compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_operator(cache, ignore)
    monkeypatch.setattr("torch.__version__", "99")
    assert build_operator(cache, ignore) != first


def test_without_a_compiler_a_library_built_before_is_taken(
    compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = build_operator(cache, ignore)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build_operator(cache, ignore) == library


def test_no_compiler_and_nothing_built_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(OperatorBuildError, match=r"no C\+\+ compiler: 'no-such-compiler'"):
        build_operator(cache, ignore)


def test_a_failure_names_the_compilers_reason_and_leaves_nothing(compiler: Compiler, cache: Path) -> None:
    compiler.install(fails=True)
    with pytest.raises(OperatorBuildError, match=r"status 1: kernels\.cpp:7: error: no such vector"):
        build_operator(cache, ignore)
    assert list(cache.rglob("*.so")) == []
    compiler.install()
    assert build_operator(cache, ignore).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_compiler_that_is_interrupted_is_no_failure(
    compiler: Compiler, cache: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(operator_build, "num_cpus", lambda: 1)
    compiler.install(signal=number)
    with pytest.raises(KeyboardInterrupt, match=number.name):
        build_operator(cache, ignore)
    assert compiler.compilations() == 1, "no other was begun"


def test_a_folder_that_cannot_be_made_is_said(compiler: Compiler, cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(OperatorBuildError, match="can't be built in"):
        build_operator(cache, ignore)


def test_two_processes_compile_once(compiler: Compiler, cache: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from openai_kv.model_runner.operator_build import build_operator\n"
        "print(build_operator(pathlib.Path(sys.argv[1]), lambda line: None))"
    )
    command = [sys.executable, "-c", code, str(cache)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    libraries = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(libraries) == 1
    assert compiler.compilations() == len(units(os.uname().machine))


def test_a_library_that_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from openai_kv.errors import OperatorBuildError\n"
        "from openai_kv.model_runner.operator_build import load_operator\n"
        "try:\n    load_operator(pathlib.Path(sys.argv[1]))\n"
        "except OperatorBuildError as error:\n    print(error)"
    )
    (tmp_path / "broken.so").write_text("object")
    command = [sys.executable, "-c", code, str(tmp_path / "broken.so")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "can't be loaded" in output


def test_other_machines_get_the_portable_kernels_alone() -> None:
    assert [unit.name for unit in units("aarch64")] == ["operator", "generic", "quantized_generic"]
