"""All the pluggy there is: find plugins, let them register classes, build the ones the settings name."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pluggy
from pydantic import BaseModel

from openai_kv import hookspecs
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.complaints import did_you_mean
from openai_kv.errors import ConfigError, PluginError, StartupError
from openai_kv.metrics_exporter import MetricsExporter
from openai_kv.parsing.tool_parser import ToolParser
from openai_kv.plugin_options import checked, options_model, shown
from openai_kv.plugin_origins import PluginOrigin, all_origins
from openai_kv.tiers.tier import CacheTier, check_tier

PluginClass = type[EvictionPolicy] | type[MetricsExporter] | type[ToolParser] | type[CacheTier]
HOOKS: Mapping[str, PluginClass] = {
    "register_eviction_policies": EvictionPolicy,
    "register_metrics_exporters": MetricsExporter,
    "register_tool_parsers": ToolParser,
    "register_cache_tiers": CacheTier,
}


@dataclass(frozen=True, slots=True)
class Plugin:
    """One class that a plugin module registered through `hook`."""

    name: str
    origin: PluginOrigin
    hook: str
    cls: PluginClass
    options: type[BaseModel]


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """A plugin module that is skipped, and why."""

    origin: PluginOrigin
    reason: str

    def __str__(self) -> str:
        return f"plugin {self.origin.name} ({self.origin.source}): {self.reason}"


@dataclass(frozen=True, slots=True)
class PluginReport:
    """One line of `openai-kv plugins` and GET /plugins; secrets among `options` are masked."""

    name: str
    version: str
    source: str
    hooks: tuple[str, ...]
    active: bool
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PluginRegistry:
    plugins: tuple[Plugin, ...]
    problems: tuple[PluginProblem, ...]

    def create_policy(self, name: str, options: Mapping[str, Mapping[str, Any]]) -> EvictionPolicy:
        """The policy `name`, built with `options[name]`. Raises PluginError (no such) or ConfigError (options)."""
        self.check_options(options)
        made = create(self.find(name, "register_eviction_policies"), options.get(name, {}))
        assert isinstance(made, EvictionPolicy)
        return made

    def create_exporters(
        self, names: Sequence[str], options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[MetricsExporter, ...]:
        """One exporter a name, each built with `options[name]`; errors as for `create_policy`."""
        self.check_options(options)
        found = [self.find(name, "register_metrics_exporters") for name in names]
        made = [create(plugin, options.get(plugin.name, {})) for plugin in found]
        return tuple(exporter for exporter in made if isinstance(exporter, MetricsExporter))

    def create_tool_parsers(self, name: str, options: Mapping[str, Mapping[str, Any]]) -> tuple[ToolParser, ...]:
        """The parser `name`; all, in the order in which they are asked, for `auto`; `none`: none."""
        self.check_options(options)
        found = [self.find(name, "register_tool_parsers")] if name not in ("auto", "none") else []
        if name == "auto":
            found = [plugin for plugin in self.plugins if plugin.hook == "register_tool_parsers"]
        made = [create(plugin, options.get(plugin.name, {})) for plugin in found]
        return tuple(parser for parser in made if isinstance(parser, ToolParser))

    def create_tiers(self, names: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> tuple[CacheTier, ...]:
        """One tier a name, each built with `options[name]`; errors as for `create_policy`."""
        self.check_options(options)
        found = [self.find(name, "register_cache_tiers") for name in names]
        made = [create(plugin, options.get(plugin.name, {})) for plugin in found]
        return tuple(tier for tier in made if isinstance(tier, CacheTier))

    def report(self, active: Collection[str], options: Mapping[str, Mapping[str, Any]]) -> tuple[PluginReport, ...]:
        """What exists; `active` are the chosen names, their options include the defaults."""
        return tuple(describe(plugin, plugin.name in active, options.get(plugin.name, {})) for plugin in self.plugins)

    def find(self, name: str, hook: str) -> Plugin:
        known = [plugin.name for plugin in self.plugins if plugin.hook == hook]
        for plugin in self.plugins:
            if plugin.name == name and plugin.hook == hook:
                return plugin
        kind = hook.removeprefix("register_").replace("_", " ")
        broken = "".join(f"; broken: {problem}" for problem in self.problems)
        raise PluginError(f"no plugin {name!r} among the {kind}{did_you_mean(name, known)}; {', '.join(known)}{broken}")

    def check_options(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Those of plugins that are not chosen, too: a mistake shows when it is made. Raises as `create_policy`."""
        known = {plugin.name: plugin for plugin in self.plugins}
        for name, values in options.items():
            if name not in known:
                hint = did_you_mean(name, known)
                raise PluginError(f"[plugins.{name}] names no plugin{hint}; {', '.join(sorted(known))}")
            checked(name, known[name].options, values)


def load_plugins(plugins_dir: str = "") -> PluginRegistry:
    """Built-in plugins, then installed ones, then the files of `plugins_dir` (empty: none); the first of a name stays.

    Raises PluginError for a misspelt hook, ConfigError for a missing folder. Other broken plugins become `problems`.
    """
    plugins: dict[str, Plugin] = {}
    problems: list[PluginProblem] = []
    for origin in all_origins(plugins_dir):
        try:
            found = list(register(origin))
        except PluginError:
            raise
        except (Exception, SystemExit) as error:
            problems.append(PluginProblem(origin, f"{type(error).__name__}: {error}"))
            continue
        if not found:
            problems.append(PluginProblem(origin, "registers nothing; functions that do are marked @hookimpl"))
        for plugin in found:
            if plugins.setdefault(plugin.name, plugin) is not plugin:
                problems.append(PluginProblem(origin, f"the name {plugin.name!r} is taken"))
    return PluginRegistry(tuple(plugins.values()), tuple(problems))


def register(origin: PluginOrigin) -> Iterator[Plugin]:
    """Import one plugin module and take what it registers; a manager of its own keeps a broken one apart."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(origin.load(), origin.name)
    try:
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        problem = str(error).partition(" in plugin ")[0]
        raise PluginError(f"plugin {origin.name} ({origin.source}): {problem}; hooks are {', '.join(HOOKS)}") from None
    for hook, base in HOOKS.items():
        classes: list[PluginClass] = []
        getattr(manager.hook, hook)(register=classes.append)
        yield from (make_plugin(origin, hook, cls, base) for cls in classes)


def make_plugin(origin: PluginOrigin, hook: str, cls: PluginClass, base: PluginClass) -> Plugin:
    if not (isinstance(cls, type) and issubclass(cls, base) and isinstance(getattr(cls, "name", None), str)):
        raise TypeError(f"{hook} takes subclasses of {base.__name__} with a name, not {cls!r}")
    if issubclass(cls, CacheTier):
        check_tier(cls)
    return Plugin(cls.name, origin, hook, cls, options_model(cls))


def create(plugin: Plugin, options: Mapping[str, Any]) -> EvictionPolicy | MetricsExporter | ToolParser | CacheTier:
    try:
        return plugin.cls(**checked(plugin.name, plugin.options, options))
    except StartupError:
        raise
    except ValueError as error:
        raise ConfigError(f"plugins.{plugin.name}: {error}") from None
    except Exception as error:
        raise PluginError(f"plugin {plugin.name!r} is broken: {type(error).__name__}: {error}") from error


def describe(plugin: Plugin, active: bool, options: Mapping[str, Any]) -> PluginReport:
    origin, shown_options = plugin.origin, shown(plugin.options, options)
    return PluginReport(plugin.name, origin.version, origin.source, (plugin.hook,), active, shown_options)
