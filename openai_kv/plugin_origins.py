"""Where plugin modules come from: this package, installed ones, a folder of files."""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from openai_kv import __version__, default_plugins
from openai_kv.errors import ConfigError
from openai_kv.hookspecs import PROJECT


@dataclass(frozen=True, slots=True)
class PluginOrigin:
    """Where a plugin module comes from; `source` is builtin, entry_point or file."""

    name: str
    version: str
    source: str
    load: Callable[[], object]


def all_origins(plugins_dir: str) -> Iterator[PluginOrigin]:
    """In the order in which names are taken. Raises ConfigError for a missing folder."""
    yield from builtin_origins()
    yield from entry_point_origins()
    yield from file_origins(plugins_dir)


def builtin_origins() -> Iterator[PluginOrigin]:
    for module in pkgutil.iter_modules(default_plugins.__path__, f"{default_plugins.__name__}."):
        load = partial(importlib.import_module, module.name)
        yield PluginOrigin(module.name.rpartition(".")[2], __version__, "builtin", load)


def entry_point_origins() -> Iterator[PluginOrigin]:
    for entry in entry_points(group=PROJECT):
        yield PluginOrigin(entry.name, entry.dist.version if entry.dist else "", "entry_point", entry.load)


def file_origins(plugins_dir: str) -> Iterator[PluginOrigin]:
    folder = Path(plugins_dir).expanduser()
    if plugins_dir and not folder.is_dir():
        raise ConfigError(f"cache.plugins_dir = {plugins_dir!r}: no such folder")
    for path in sorted(folder.glob("*.py")) if plugins_dir else ():
        yield PluginOrigin(path.stem, "", "file", partial(load_file, path))


def load_file(path: Path) -> ModuleType:
    """Import one file under a name of its own; dataclasses in it need the entry in sys.modules."""
    spec = importlib.util.spec_from_file_location(f"openai_kv_plugin_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
