import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openai_kv import cli, hookspecs
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.default_plugins.prometheus import PrometheusExporter
from openai_kv.errors import ConfigError, PluginError
from openai_kv.grammar.lark import Lark
from openai_kv.parsing.grammars import OutputGrammar
from openai_kv.parsing.tool_parser import Tool
from openai_kv.plugin_options import mask
from openai_kv.plugins import HOOKS, PluginRegistry, load_plugins
from openai_kv.request import RequestInfo
from tests.grammar.grammars import COMPILER, accepts
from tests.parsing.texts import read

EXAMPLES = Path(__file__).parent.parent / "plugins"
POLICY = """
from openai_kv import PriorityPolicy, hookimpl

class Policy(PriorityPolicy):
    name = "mine"
    def __init__(self, protected_hits: int = 2, api_token: str = "", *, strict: bool = False):
        super().__init__()
        self.seen = (protected_hits, api_token, strict)
        if protected_hits < 0:
            raise ValueError("protected_hits is below zero")
        if strict:
            raise RuntimeError("not today")
    def priority(self, block):
        return 0

@hookimpl
def register_eviction_policies(register):
    register(Policy)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(POLICY)
    return tmp_path


def load(folder: Path, **files: str) -> PluginRegistry:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return load_plugins(str(folder))


def refusal(registry: PluginRegistry, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        registry.create_policy("mine", {"mine": options})
    return str(caught.value)


def test_built_in_plugins_come_through_the_hooks() -> None:
    registry = load_plugins()
    for name in ("lru", "sink_lru", "h2o"):
        assert registry.create_policy(name, {}).name == name
    assert [type(exporter) for exporter in registry.create_exporters(["prometheus"], {})] == [PrometheusExporter]
    assert registry.problems == ()


def test_each_policy_is_a_new_object() -> None:
    registry = load_plugins()
    assert registry.create_policy("lru", {}) is not registry.create_policy("lru", {})


def test_options_are_the_constructor_arguments(folder: Path) -> None:
    policy = load(folder).create_policy("mine", {"mine": {"protected_hits": "3", "api_token": "x"}})
    assert getattr(policy, "seen") == (3, "x", False)  # noqa: B009


def test_a_wrong_option_names_the_plugin_and_what_it_takes(folder: Path) -> None:
    registry = load(folder)
    accepted = "it takes protected_hits, api_token, strict"
    unknown = refusal(registry, protected_hit=1)
    assert unknown == f"plugins.mine.protected_hit: unknown option; did you mean protected_hits?; {accepted}"
    assert refusal(registry, protected_hits="many").startswith("plugins.mine.protected_hits: should be a valid integer")
    assert refusal(registry, protected_hits=-1) == "plugins.mine: protected_hits is below zero"


def test_a_misspelt_option_comes_before_the_missing_one_it_stands_for(tmp_path: Path) -> None:
    registry = load(tmp_path, mine=POLICY.replace("protected_hits: int = 2", "protected_hits: int"))
    assert "protected_hit: unknown option; did you mean protected_hits?" in refusal(registry, protected_hit=1)
    assert "plugins.mine.protected_hits: Field required" in refusal(registry)


def test_options_of_a_plugin_that_is_not_chosen_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"plugins.host.max_byte: unknown option; did you mean max_bytes\?"):
        load_plugins().create_policy("lru", {"host": {"max_byte": 1}})


def test_a_constructor_that_fails_is_a_broken_plugin(folder: Path) -> None:
    with pytest.raises(PluginError, match=r"plugin 'mine' is broken: RuntimeError: not today"):
        load(folder).create_policy("mine", {"mine": {"strict": True}})


def test_a_missing_plugin_is_named_with_what_exists() -> None:
    registry = load_plugins()
    with pytest.raises(PluginError, match=r"no plugin 'lruu'.*did you mean lru.*arc, .*fifo, .*h2o, .*lru, .*sink_lru"):
        registry.create_policy("lruu", {})
    with pytest.raises(PluginError, match=r"no plugin 'lru' among the metrics exporters.*prometheus"):
        registry.create_exporters(["lru"], {})
    with pytest.raises(PluginError, match=r"\[plugins.slur\] names no plugin"):
        registry.create_policy("lru", {"slur": {}})


def test_broken_plugins_are_reported_and_skipped(folder: Path) -> None:
    registry = load(
        folder,
        syntax="def",
        leaves="raise SystemExit(1)",
        wrong=POLICY.replace("register(Policy)", "register(int)"),
        arguments=POLICY.replace("(register)", "(registrar)"),
        twice=POLICY,
    )
    reasons = {problem.origin.name: problem.reason for problem in registry.problems}
    assert reasons.keys() == {"syntax", "leaves", "wrong", "arguments", "twice"}
    assert reasons["syntax"].startswith("SyntaxError")
    assert "takes subclasses of EvictionPolicy" in reasons["wrong"]
    assert reasons["twice"] == "the name 'mine' is taken"
    assert registry.create_policy("mine", {}).name == "mine"


def test_a_broken_plugin_that_the_settings_name_stops_the_start(tmp_path: Path) -> None:
    registry = load(tmp_path, mine="import nothing_like_it")
    with pytest.raises(PluginError, match=r"no plugin 'mine'.*plugin mine .file.: ModuleNotFoundError"):
        registry.create_policy("mine", {})


def test_a_misspelt_hook_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"hook 'register_eviction_policy'; hooks are register_eviction_policies"):
        load(tmp_path, mine=POLICY.replace("register_eviction_policies", "register_eviction_policy"))


def test_a_file_that_registers_nothing_is_reported(tmp_path: Path) -> None:
    (problem,) = load(tmp_path, mine=POLICY.replace("@hookimpl\n", "")).problems
    assert str(problem) == "plugin mine (file): registers nothing; functions that do are marked @hookimpl"


def test_a_missing_folder_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"cache.plugins_dir = '/nowhere': no such folder"):
        load_plugins("/nowhere")


def test_the_report_masks_secrets_and_shows_defaults(folder: Path) -> None:
    reports = {r.name: r for r in load(folder).report({"mine"}, {"mine": {"api_token": "hush"}})}
    mine, lru = reports["mine"], reports["lru"]
    assert mine.options == {"protected_hits": 2, "api_token": "***", "strict": False}
    assert (mine.source, mine.hooks, mine.active) == ("file", ("register_eviction_policies",), True)
    assert (lru.source, lru.active, lru.options) == ("builtin", False, {})


def test_options_that_json_does_not_know_are_shown_as_text() -> None:
    assert mask("folder", Path("/there")) == "/there"
    assert mask("url", "redis://me:p@ss@host:6379/0") == "redis://***@host:6379/0"
    assert mask("url", "redis://host/0?db=1&password=p@ss&x=2") == "redis://host/0?db=1&password=***&x=2"
    assert mask("url", "unix:///run/valkey?Password=secret") == "unix:///run/valkey?Password=***"
    assert "object" in str(mask("anything", object()))


def test_registries_share_nothing(folder: Path) -> None:
    assert "mine" in [plugin.name for plugin in load(folder).plugins]
    assert "mine" not in [plugin.name for plugin in load_plugins().plugins]


def request(manager: KVCacheManager, *tokens: int) -> None:
    """One request from admission to its end."""
    info = RequestInfo(f"r{manager.stats().prompt_tokens}", len(tokens))
    assert manager.admit(info, manager.lookup(tokens, info), len(tokens)) is not None
    manager.cache_blocks(info.request_id, tokens, with_tail=True)
    manager.free(info.request_id)
    manager.finish(info)


def survivors(policy: EvictionPolicy, *before: int) -> set[int]:
    """Which of the one-block prompts 1, 2 and 3 outlive the arrival of 4, after `before`, in a pool of three blocks."""
    manager = KVCacheManager(num_blocks=3, block_size=4, policy=policy, num_hidden_slots=0)
    for first in (*before, 4):
        request(manager, first, 0, 0, 0)
    manager.check_integrity()
    assert manager.stats().evictions_by_policy == {policy.name: 1}
    info = RequestInfo("look", 5)
    return {first for first in (1, 2, 3) if manager.lookup((first, 0, 0, 0, 0), info).num_tokens}


def test_the_one_file_example_runs_from_plugins_dir() -> None:
    registry = load_plugins(str(EXAMPLES))
    assert registry.problems == ()
    assert survivors(registry.create_policy("mru", {}), 1, 2, 3) == {1, 2}


def test_the_package_example_installs_and_runs_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    shutil.copytree(EXAMPLES / "openai-kv-capped-lfu", source)
    install = "install --quiet --no-deps --no-index --no-build-isolation --disable-pip-version-check --target"
    subprocess.run([sys.executable, "-m", "pip", *install.split(), str(target), str(source)], check=True)
    run_its_tests(source, target)
    monkeypatch.syspath_prepend(target)
    monkeypatch.setenv("COLUMNS", "200")
    registry, requests = load_plugins(), (1, 2, 1, 3, 2, 2)
    assert survivors(registry.create_policy("capped_lfu", {"capped_lfu": {"max_hits": 4}}), *requests) == {1, 2}
    assert survivors(registry.create_policy("lru", {}), *requests) == {2, 3}
    assert cli.main(["plugins", "--eviction-policy", "capped_lfu"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    row = lines.index(["capped_lfu", "1.0", "entry_point", "eviction_policies", "yes"])
    assert lines[row + 1] == ["max_hits", "=", "8"]


def run_its_tests(source: Path, target: Path) -> None:
    """As its author would, with the package installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(source), str(source)]
    done = subprocess.run(command, env=environment, cwd=source, capture_output=True, text=True, check=False)
    assert "5 passed" in done.stdout, done.stdout


def test_every_hook_of_the_specification_is_known() -> None:
    specified = {name for name in vars(hookspecs) if name.startswith("register_")}
    assert specified == set(HOOKS)


def test_tool_parsers_by_name_or_all_of_them_in_their_order() -> None:
    registry = load_plugins(str(EXAMPLES))
    names = [parser.name for parser in registry.create_tool_parsers("auto", {})]
    assert names == ["hermes", "mistral", "pythonic", "llama3_json", "bracket"]
    assert [parser.name for parser in registry.create_tool_parsers("bracket", {})] == ["bracket"]
    assert registry.create_tool_parsers("none", {}) == ()
    with pytest.raises(PluginError, match="no plugin 'hermees' among the tool parsers; did you mean hermes"):
        registry.create_tool_parsers("hermees", {})


def test_the_example_of_a_tool_parser_reads_what_its_grammar_writes() -> None:
    (parser,) = load_plugins(str(EXAMPLES)).create_tool_parsers("bracket", {})
    text = '<<add {"a": 1}>>\n<<get_weather {}>>'
    told = read(parser, [text + " Done. <<", "2 > 1>>"])
    assert told.calls == [("add", '{"a": 1}', True), ("get_weather", "{}", True)]
    assert told.content == "Done. <<2 > 1>>"
    syntax = parser.syntax([Tool("add", {"type": "object"}), Tool("get_weather", {"const": {}})], Lark({}))
    assert syntax is not None
    grammar = COMPILER.compile(OutputGrammar(Lark({})).calls(syntax, parser.start_marker, many=True))
    assert accepts(grammar, text)
    assert not accepts(grammar, text.replace("{}", '{"a": 1}'))
