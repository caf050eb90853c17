import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from openai_kv.config import Settings, load_settings
from openai_kv.config_sources import environment, iter_options
from openai_kv.errors import ConfigError

CONFIG = Path(__file__).parent.parent / "config"
PLACES = ["default", "file", "EVICTION_POLICY", "OPENAI_KV_EVICTION_POLICY", "OPENAI_KV_CACHE__EVICTION_POLICY", "flag"]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, _ in environment():
        monkeypatch.delenv(name)
    monkeypatch.delenv("EVICTION_POLICY", raising=False)


def refusal(flags: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(flags)
    message = str(caught.value)
    assert "\n" not in message
    return message


def file(tmp_path: Path, text: str) -> dict[str, object]:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return {"config": str(path)}


@pytest.mark.parametrize("count", range(1, len(PLACES) + 1))
def test_later_places_win(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: dict[str, object] = {}
    for place in PLACES[1:count]:
        if place == "file":
            flags |= file(tmp_path, '[cache]\neviction_policy = "file"')
        elif place == "flag":
            flags["cache.eviction_policy"] = "flag"
        else:
            monkeypatch.setenv(place, place)
    expected = "lru" if count == 1 else PLACES[count - 1]
    assert load_settings(flags).cache.eviction_policy == expected


def test_sections_merge_over_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_SERVER__PORT", "9001")
    server = load_settings({**file(tmp_path, '[server]\nhost = "::1"\nport = 9000'), "server.max_queue": "7"}).server
    assert (server.host, server.port, server.max_queue) == ("::1", 9001, 7)


def test_the_file_may_be_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_CONFIG", str(file(tmp_path, "[server]\nport = 9002")["config"]))
    assert load_settings().server.port == 9002


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"server.prot": 1}, "unknown setting server.prot; did you mean server.port?"),
        ({"server.port": "many"}, "server.port = 'many': should be a valid integer"),
        ({"server.port": 70000}, "server.port = 70000: should be less than or equal to 65535"),
        ({"model.dtype": "int3"}, "model.dtype = 'int3': should be 'auto', 'float32', 'bfloat16' or 'float16'"),
        ({"model.device": "gpu"}, "model.device = 'gpu'"),
        ({"cache.kv_cache_memory": "2GoB"}, "cache.kv_cache_memory = '2GoB': should be a size like 1GiB"),
        ({"cache.kv_cache_memory": "0"}, "cache.kv_cache_memory = '0': should be more than nothing"),
        ({"server.sse_ping": "nan"}, "server.sse_ping"),
        ({"server.max_toys": 16}, "unknown setting server.max_toys"),
        ({"engine.max_num_batched_tokens": "16"}, "should be at least max_num_seqs"),
        ({"cache.tiers": ["disk", "host,disk"]}, "should name each tier once"),
        ({"cache.demotion": "never"}, "cache.demotion = 'never': should be 'auto', 'write-back'"),
        ({"config": "/nowhere.toml"}, "configuration file /nowhere.toml: No such file"),
    ],
)
def test_a_bad_value_is_named_in_one_line(flags: dict[str, object], expected: str) -> None:
    assert expected in refusal(flags)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nprot = 1", "unknown setting server.prot; did you mean server.port?"),
        ("[sever]\nport = 1", "unknown setting sever; did you mean server?"),
        ("port = 1", "unknown setting port; did you mean server.port?"),
        ("server = 3", "server = 3"),
        ("[server\n", "settings.toml: "),
        ("[plugins]\nlru = 3", "plugins.lru = 3"),
    ],
)
def test_a_bad_file_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    assert expected in refusal(file(tmp_path, text))


@pytest.mark.parametrize(
    "name", ["OPENAI_KV_SERVER__PROT", "OPENAI_KV_SERVER", "OPENAI_KV_PLUGINS__LRU", "OPENAI_KV_X"]
)
def test_an_unknown_variable_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert f"unknown environment variable {name}" in refusal({})


def test_a_variable_without_its_section_is_told_the_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_PORT", "1")
    assert refusal({}).endswith("OPENAI_KV_PORT; did you mean OPENAI_KV_SERVER__PORT?")


def test_variables_that_hold_keys_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_API_KEYS", "a")
    monkeypatch.setenv("OPENAI_KV_TEAM_KEY", "b")
    assert load_settings({"auth.admin_key_env": "OPENAI_KV_TEAM_KEY"}).auth.keys_env == "OPENAI_KV_API_KEYS"
    assert "OPENAI_KV_TEAM_KEY" in refusal({})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1GiB", 2**30),
        ("1.5 gib", 3 * 2**29),
        ("500MB", 500_000_000),
        (4096, 4096),
        ("0.9", 0.9),
        (1.0, 1.0),
        ("auto", "auto"),
    ],
)
def test_memory_is_bytes_or_a_fraction(text: object, expected: object) -> None:
    memory = load_settings({"cache.kv_cache_memory": text}).cache.kv_cache_memory
    assert (memory, type(memory)) == (expected, type(expected))


def test_names_are_lists_in_every_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_SERVER__SERVED_MODEL_NAMES", "a, b,")
    assert load_settings().server.served_model_names == ("a", "b")
    assert load_settings({"server.served_model_names": ["c,d", "e"]}).server.served_model_names == ("c", "d", "e")


def test_plugin_options_come_from_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_KV_PLUGINS__SLRU__PROTECTED_HITS", "3")
    monkeypatch.setenv("OPENAI_KV_PLUGINS__SLRU__LABEL", "x y")
    settings = load_settings(file(tmp_path, "[plugins.slru]\nprotected_hits = 1\nsize = 2"))
    assert settings.plugins == {"slru": {"protected_hits": 3, "label": "x y", "size": 2}}


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().server.port = 1  # type: ignore[misc]


def test_every_flag_is_unique_and_every_setting_described() -> None:
    options = list(iter_options(Settings))
    assert len({option.flag for option in options}) == len(options)
    assert [option.name for option in options if not option.field.description] == []


def flatten(tree: dict[str, Any]) -> dict[str, object]:
    return {f"{section}.{name}": value for section, table in tree.items() for name, value in table.items()}


def test_default_toml_holds_every_default() -> None:
    written = flatten(tomllib.loads((CONFIG / "default.toml").read_text()))
    defaults = {option.name: option.default for option in iter_options(Settings) if "." in option.name}
    assert written == {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def test_default_toml_explains_every_setting() -> None:
    lines = (CONFIG / "default.toml").read_text().splitlines()
    explained = {line.split(" = ")[0].removeprefix("# "): above for above, line in pairwise(lines)}
    options = [option for option in iter_options(Settings) if option.name != "config"]
    wrong = [o.name for o in options if explained.get(o.name.rpartition(".")[2]) != f"# {o.field.description}"]
    assert wrong == []


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.toml")), ids=lambda path: path.stem)
def test_every_configuration_file_loads(path: Path) -> None:
    assert load_settings({"config": str(path)}).config == str(path)


def test_the_disk_tier_lies_in_the_home_folder(tmp_path: Path) -> None:
    flags: dict[str, object] = {"home": str(tmp_path), "cache.tiers": "disk"}
    assert load_settings(flags).plugin_options == {"disk": {"path": str(tmp_path / "blocks")}}
    chosen = load_settings({**flags, **file(tmp_path, '[plugins.disk]\npath = "/elsewhere"\nmax_bytes = "1GiB"')})
    assert chosen.plugin_options["disk"] == {"path": "/elsewhere", "max_bytes": "1GiB"}
    assert load_settings({"home": str(tmp_path)}).plugin_options == load_settings(flags).plugin_options, "told anyway"
