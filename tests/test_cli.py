import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openai_kv import cli
from openai_kv.config import Settings
from openai_kv.config_sources import environment, iter_options
from openai_kv.plugin_list import as_written

HEAVY = """
import sys
from openai_kv.cli import main
try:
    main(sys.argv[1:])
finally:
    print([name for name in ("torch", "transformers", "starlette", "huggingface_hub") if name in sys.modules])
"""
WAITING = """
import sys, threading, types
import openai_kv
def serve(settings):
    print("starting", flush=True)
    threading.Event().wait()
openai_kv.build = types.SimpleNamespace(serve=serve)
from openai_kv.cli import main
sys.exit(main(["serve"]))
"""


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, _ in environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "300")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What `serve` was called with."""
    calls: list[Settings] = []

    def serve(settings: Settings) -> int:
        calls.append(settings)
        return 0

    monkeypatch.setattr(cli, "serve", serve)
    return calls


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("argv", [["--help"], ["serve", "--help"], ["plugins"]])
def test_light_commands_import_nothing_heavy(argv: list[str]) -> None:
    result = subprocess.run([sys.executable, "-c", HEAVY, *argv], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_help_shows_every_option_with_meaning_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "serve", "--help")
    for option in iter_options(Settings):
        entry = re.search(rf"^  {option.flag}[ ,].*?(?=^  --|^$)", text, re.MULTILINE | re.DOTALL)
        assert entry is not None, option.name
        words = " ".join(entry[0].split())
        assert option.field.description is not None
        assert option.field.description in words
        if option.default not in ("", (), True, False):
            assert words.endswith(f"[{cli.show(option.default)}]"), words


def test_help_calls_a_share_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "serve", "--help")
    assert re.search(r"--max-pinned-fraction SHARE", text)
    assert "SECONDS" not in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert re.fullmatch(r"openai-kv \d+\.\d+\.\d+\n", printed(capsys, "--version"))


def test_flags_become_settings(served: list[Settings]) -> None:
    argv = "serve --port 9 --eviction-policy h2o --served-model-name a b --no-strict-parameters --kv-cache-memory=2GiB"
    assert cli.main(argv.split()) == 0
    (settings,) = served
    assert (settings.server.port, settings.cache.eviction_policy) == (9, "h2o")
    assert settings.server.served_model_names == ("a", "b")
    assert settings.server.strict_parameters is False
    assert settings.cache.kv_cache_memory == 2**31


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("serve --prot 3", "unknown flag --prot; did you mean --port?"),
        ("serve --evictionpolicy=lru", "unknown flag --evictionpolicy; did you mean --eviction-policy?"),
        ("bench --kv-cache-dtype int8", "unknown flag --kv-cache-dtype\n"),
        ("serve --specul auto", "unknown flag --specul; did you mean --speculation?"),
        ("bench --base-ulr x", "unknown flag --base-ulr; did you mean --base-url?"),
        ("serve --port many", "server.port = 'many'"),
        ("serve --port", "argument --port: expected one argument"),
        ("serve one extra", "unexpected argument extra"),
        ("serve --keys secret", "unknown flag --keys"),
        ("serv", "invalid choice: 'serv'"),
        ("", "required"),
        ("plugins --plugins-dir /nowhere", "cache.plugins_dir = '/nowhere': no such folder"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    argv: str, expected: str, served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("openai-kv: ")
    assert expected in captured.err
    assert (captured.err.count("\n"), captured.out, served) == (1, "", [])


def test_an_unknown_variable_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, served: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_KV_SERVER__PROT", "1")
    assert cli.main(["serve"]) == 2
    assert "did you mean OPENAI_KV_SERVER__PORT?" in capsys.readouterr().err
    assert served == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_start_ends_it_quietly(number: signal.Signals) -> None:
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        process.send_signal(number)
        _, errors = process.communicate()
    assert (process.returncode, errors.count("\n")) == (130, 1)
    assert errors.startswith("starting: "), "said before what takes long"


def test_plugins_lists_the_built_in_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plugins", "--eviction-policy", "h2o"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert {"lru", "sink_lru", "h2o", "prometheus"} <= rows.keys()
    assert [name for name, row in rows.items() if "yes" in row] == ["h2o", "prometheus"]
    assert rows["lru"][2:4] == ["builtin", "eviction_policies"]


@pytest.mark.parametrize(
    ("value", "written"), [(["lru", "arc"], '["lru", "arc"]'), (True, "true"), (0.5, "0.5"), ("a b", "a b")]
)
def test_options_of_plugins_are_shown_as_the_file_has_them(value: object, written: str) -> None:
    assert as_written(value) == written


def test_plugins_fit_into_80_columns_and_break_no_word(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_KV_HOME", "/some/where/that/is/longer/than/a/column")
    assert cli.main(["plugins"]) == 0
    lines = capsys.readouterr().out.splitlines()
    disk = next(index for index, line in enumerate(lines) if line.startswith("disk "))
    assert lines[disk + 1 : disk + 3] == [
        "    path = /some/where/that/is/longer/than/a/column/blocks",
        "    max_bytes = 10737418240",
    ]
    assert '    policies = ["lru", "arc", "s3_fifo", "learned"]' in lines
    assert max(map(len, lines)) <= 80


def test_pull_prints_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert cli.main(["pull", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}\n"


def test_a_model_that_is_not_there_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", "./nowhere"]) == 1
    assert capsys.readouterr().err == "openai-kv: model './nowhere': no such file or folder\n"


@pytest.mark.parametrize("command", ["serve", "pull"])
@pytest.mark.parametrize("model", [["./folder"], ["--model", "./folder"]])
def test_the_model_is_an_argument_or_a_flag(command: str, model: list[str]) -> None:
    assert vars(cli.build_parser().parse_args([command, *model]))["model.model"] == "./folder"


@pytest.mark.parametrize("model", [["./nowhere"], ["--model", "./nowhere"]])
def test_plan_takes_the_model_as_an_argument_or_a_flag(model: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *model]) == 1
    assert capsys.readouterr().err == "openai-kv: model './nowhere': no such file or folder\n"


def test_plugins_refuses_options_that_no_plugin_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my.toml").write_text("[plugins.slru]\nprotected_shar = 0.5\n")
    assert cli.main(["plugins", "--config", str(tmp_path / "my.toml")]) == 2
    assert "plugins.slru.protected_shar: unknown option; did you mean protected_share?" in capsys.readouterr().err
