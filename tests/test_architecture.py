"""The arrows of docs/architecture.md, read off the imports (local ones too)."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "openai_kv"
PLAIN = {"errors", "request", "outputs", "metrics"}
SETTINGS = {"complaints", "config", "config_sources", "config_upstreams", "config_values"}
# What each part may import besides itself and plain data. A new part needs a line here: think which way its arrows go.
ARROWS: dict[str, set[str]] = {
    **{name: set() for name in PLAIN},
    "cache": set(),
    "metrics_exporter": set(),
    "hookspecs": {"cache", "metrics_exporter", "parsing", "tiers"},
    "default_plugins": {"cache", "hookspecs", "metrics_exporter", "otel", "parsing", "prometheus", "tiers"},
    "tiers": {"config_values", "exporting"},
    "testing": {"cache", "tiers"},
    "otel": set(),
    "prometheus": set(),
    "exporter_thread": {"metrics_exporter"},
    "exporting": {"exporter_thread", "metrics_exporter"},
    "recording": set(),
    "token_bytes": set(),
    "time_limit": set(),
    "text_cuts": set(),
    "piece_cache": {"text_cuts"},
    "tokenizer": {"piece_cache", "text_cuts", "time_limit", "token_bytes"},
    "grammar": {"tokenizer"},
    "parsing": {"grammar"},
    "drafting": {"cache"},
    "scheduler": {"cache", "drafting", "tiers"},
    "cgroup": set(),
    "model_runner": {"cgroup"},
    "engine": {"scheduler", "cache", "exporting", "recording", "tokenizer"},
    "server": {"engine", "exporting", "token_bytes", "tokenizer", "grammar", "parsing", *SETTINGS},
    "config_sources": set(),
    "config_upstreams": set(),
    "config_values": set(),
    "complaints": set(),
    "config": SETTINGS,
    "plugin_origins": {"default_plugins", "hookspecs"},
    "plugin_options": {"complaints"},
    "plugins": {
        "cache",
        "complaints",
        "hookspecs",
        "metrics_exporter",
        "parsing",
        "plugin_options",
        "plugin_origins",
        "tiers",
    },
    "plugin_list": {"plugins"},
    "simulate": {"cache", "cgroup", "plugins", "default_plugins", *SETTINGS},
    "bench": {"simulate", *SETTINGS},
    "planning": {"model_runner", "model_store", *SETTINGS},
    "model_store": {"model_runner", *SETTINGS},
}
EVERYTHING = {"build", "cli"}
ONLY_IN = {
    "torch": {"model_runner"},
    "starlette": {"server"},
    "sse_starlette": {"server"},
    "orjson": {"server"},
    "httpx": {"server", "model_store", "bench"},
    "uvicorn": {"server"},
    "asyncio": {"server", "engine", "bench"},
    "threading": {"engine", "exporting", "exporter_thread", "piece_cache", "tiers"},
    "multiprocessing": {"engine", "simulate"},
    "pluggy": {"hookspecs", "plugins"},
    "opentelemetry": {"otel"},
    "prometheus_client": {"prometheus", "default_plugins"},
    "llguidance": {"grammar"},
}


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of what a file imports: `from openai_kv import build` is openai_kv.build."""
    return imported(path, ast.walk(syntax(path)))


def imported(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def edges() -> Iterator[tuple[Path, str, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in imports(path):
            top, _, rest = name.partition(".")
            yield path, top, rest.partition(".")[0]


def test_imports_follow_the_arrows() -> None:
    parts = {*ARROWS, *EVERYTHING}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {target}"
        for path, top, target in edges()
        if top == "openai_kv" and target in parts
        if (source := part(path)) not in EVERYTHING | {"__init__", target}
        if target not in ARROWS[source] | PLAIN
    ]
    assert wrong == []


def test_no_import_cycles() -> None:
    """Among modules, too; types may name each other (`if TYPE_CHECKING`)."""
    graph = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        graph[name] = {wanted.rpartition(".")[0] for wanted in imported(path, syntax(path).body)}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_every_part_has_its_arrows() -> None:
    assert {part(path) for path in PACKAGE.rglob("*.py")} - {"__init__"} == {*ARROWS, *EVERYTHING}


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_in_their_layer(library: str) -> None:
    users = {part(path) for path, top, _ in edges() if top == library}
    assert users <= ONLY_IN[library]
