"""Where settings come from: the environment, its aliases and a TOML file; and the list of all of them."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from openai_kv.errors import ConfigError

ENV_PREFIX = "OPENAI_KV_"
TABLES = ("plugins", "upstreams")  # their keys are free, so that they have no flags
POLICY_ALIASES = ("OPENAI_KV_EVICTION_POLICY", "EVICTION_POLICY")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: `name` is dotted (`server.port`), the flag is its last part."""

    name: str
    field: FieldInfo

    @property
    def variable(self) -> str:
        return ENV_PREFIX + self.name.upper().replace(".", "__")

    @property
    def flag(self) -> str:
        return "--" + self.name.rpartition(".")[2].replace("_", "-")

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)


def iter_options(settings: type[BaseSettings]) -> Iterator[Option]:
    """Every setting but the free tables, in the order of the tree."""
    for name, field in settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from (Option(f"{name}.{key}", inner) for key, inner in section.model_fields.items())
        elif name not in TABLES:
            yield Option(name, field)


def nest(values: Mapping[str, object]) -> dict[str, Any]:
    """`{"server.port": 1}` as `{"server": {"port": 1}}`."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *path, leaf = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


class Source(PydanticBaseSettingsSource):
    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError("values come as a whole tree")


class EnvironmentSource(Source):
    """`OPENAI_KV_SECTION__NAME`, and `OPENAI_KV_PLUGINS__NAME__OPTION` with a JSON value or plain text."""

    def __call__(self) -> dict[str, Any]:
        known = {option.name for option in iter_options(self.settings_cls)}
        values: dict[str, object] = {}
        for variable, value in environment():
            name = setting_name(variable)
            if is_plugin_option(name):
                values[name] = parse_plugin_value(value)
            elif name in known:
                values[name] = value
        return nest(values)


class AliasSource(Source):
    """The shorter variables for the eviction policy; an empty one counts as not set."""

    def __call__(self) -> dict[str, Any]:
        policy = next(filter(None, map(os.environ.get, POLICY_ALIASES)), None)
        return {"cache": {"eviction_policy": policy}} if policy else {}


class FileSource(Source):
    """The TOML file that an earlier source named."""

    def __call__(self) -> dict[str, Any]:
        path = self.current_state.get("config")
        return read_toml(Path(path)) if path else {}


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"configuration file {path}: {error}") from None


def environment() -> list[tuple[str, str]]:
    """Our variables and their values."""
    return [(name, value) for name, value in os.environ.items() if name.startswith(ENV_PREFIX)]


def setting_name(variable: str) -> str:
    return variable.removeprefix(ENV_PREFIX).lower().replace("__", ".")


def is_plugin_option(name: str) -> bool:
    return name.startswith("plugins.") and name.count(".") == 2


def parse_plugin_value(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError:
        return value
