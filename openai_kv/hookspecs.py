"""The hooks a plugin may implement. They register classes once at start; hot paths call objects."""

from collections.abc import Callable

import pluggy

from openai_kv.cache.policy import EvictionPolicy
from openai_kv.metrics_exporter import MetricsExporter
from openai_kv.parsing.tool_parser import ToolParser
from openai_kv.tiers.tier import CacheTier

PROJECT = "openai_kv"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def register_eviction_policies(register: Callable[[type[EvictionPolicy]], None]) -> None:
    """Call `register(MyPolicy)` for each policy class; it is chosen by its `name`."""


@hookspec
def register_metrics_exporters(register: Callable[[type[MetricsExporter]], None]) -> None:
    """Call `register(MyExporter)` for each exporter class; it is chosen by its `name`."""


@hookspec
def register_tool_parsers(register: Callable[[type[ToolParser]], None]) -> None:
    """Call `register(MyParser)` for each parser class; it is chosen by its `name`, or by the model's chat template."""


@hookspec
def register_cache_tiers(register: Callable[[type[CacheTier]], None]) -> None:
    """Call `register(MyTier)` for each tier class; it is chosen by its `name`."""
