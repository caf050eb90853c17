"""Values of settings and options as one writes them: sizes, durations, lists of names."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from openai_kv.errors import ConfigError

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(value: object) -> object:
    """Bytes of a text like `1GiB`, `500 MB` or `4096`; anything but text passes unchanged."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in UNITS:
        raise ValueError("should be a size like 1GiB or 500MB")
    return int(float(match[1]) * UNITS[match[2].upper()])


def positive(text: str) -> int:
    """A whole number above 0, of the command line. Raises ConfigError."""
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{text!r} is not a whole number above 0")
    return int(text)


def parse_memory(value: object) -> object:
    """`auto`, a fraction of the free memory (a number up to 1, as float) or a size (bytes, as int)."""
    if value == "auto":
        return value
    if re.fullmatch(r"0?\.\d+|1\.0*", str(value)):
        return float(str(value))
    size = parse_size(str(value))
    if not size:
        raise ValueError("should be more than nothing")
    return size


def parse_duration(value: object) -> object:
    """Seconds of a text like `90s`, `30m` or `12h`; anything but text passes unchanged."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([1-9][0-9]{0,8})([smh])", value)
    if match is None:
        raise ValueError("should be a duration like 90s, 30m or 12h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def split_names(value: object) -> object:
    """`"a,b"` or `["a,b", "c"]` as a tuple of names."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        return value
    return tuple(name.strip() for item in items for name in item.split(",") if name.strip())


def check_origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    """As browsers send them: scheme and host, lower case, no path."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@*\sA-Z]+", origin):
            raise ValueError(f"{origin!r} should be an origin like https://chat.example.com, or *")
    return origins


def check_writable(*paths: Path | None) -> None:
    """Files that a long computation will write, looked at before it begins. Raises ConfigError."""
    for path in filter(None, paths):
        if not path.parent.is_dir():
            raise ConfigError(f"{path}: no such folder")
        if path.is_dir():
            raise ConfigError(f"{path}: a folder, not a file")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ConfigError(f"{path}: can't be written")


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[int, BeforeValidator(parse_duration)]
Memory = Annotated[int | float | Literal["auto"], BeforeValidator(parse_memory)]
Names = Annotated[tuple[str, ...], BeforeValidator(split_names)]
Origins = Annotated[Names, AfterValidator(check_origins)]
ModelPattern = Annotated[str, Field(min_length=1)]
Folder = Annotated[Path, AfterValidator(Path.expanduser)]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KVFormat = Literal["auto", "float32", "bfloat16", "float16", "int8", "int8-int4", "int4-int8", "int4"]
