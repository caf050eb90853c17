"""The command line: one function a command. Nothing heavy is imported before a command needs it."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NoReturn, get_args, get_origin

from openai_kv import __version__
from openai_kv.bench.arguments import add_arguments as add_bench_arguments
from openai_kv.complaints import did_you_mean
from openai_kv.config import Settings, load_settings
from openai_kv.config_sources import Option, iter_options
from openai_kv.errors import ConfigError, PluginError, StartupError
from openai_kv.planning.arguments import add_arguments as add_plan_arguments
from openai_kv.simulate.arguments import add_arguments as add_simulate_arguments

EPILOG = """Each option is also an environment variable (--port: OPENAI_KV_SERVER__PORT) and a line of the file given
with --config ([server] port = 8000); options of plugins are in its [plugins.NAME] tables. A flag wins over the
environment, the environment over the file. API keys come from the environment or a file only."""
GENERAL = ("config", "home")
PLUGIN_OPTIONS = ("config", "server.metrics_exporters", "cache.eviction_policy", "cache.plugins_dir", "cache.tiers")
PULL_OPTIONS = (*GENERAL, "model.model")
SIMULATE_OPTIONS = ("config", "cache.plugins_dir")
PLAN_OPTIONS = (
    *GENERAL,
    "model.model",
    "model.dtype",
    "model.quantization",
    "model.trust_remote_code",
    "cache.block_size",
    "cache.kv_cache_dtype",
    "cache.window_layout",
    "cache.window_share",
    "engine.max_num_seqs",
    "engine.max_num_batched_tokens",
)
OWN = "own."  # begins the names of what is no setting, but the command's own


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Also what argparse calls for a subcommand: that parser alone knows which flags it takes."""
        known, unknown = super().parse_known_args(*args, **kwargs)
        if unknown:
            raise ConfigError(explain_unknown(unknown[0], self._option_string_actions))
        return known, unknown


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 2 for a wrong setting, 1 for any other failure to start."""
    try:
        return run(sys.argv[1:] if argv is None else argv)
    except StartupError as error:
        print(f"openai-kv: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | PluginError) else 1
    except KeyboardInterrupt:
        return 130


def run(argv: Sequence[str]) -> int:
    values = vars(build_parser().parse_args(argv))
    command: Callable[..., int] = values.pop("command")
    own = {name.removeprefix(OWN): values.pop(name) for name in [*values] if name.startswith(OWN)}
    return command(load_settings(values), **({"own": own} if own else {}))


def build_parser() -> Parser:
    parser = Parser(prog="openai-kv", description="An OpenAI-compatible server whose subject is the KV cache.")
    parser.add_argument("--version", action="version", version=f"openai-kv {__version__}")
    commands = parser.add_subparsers(required=True, metavar="{serve,pull,plugins,simulate,bench,plan}")
    options = list(iter_options(Settings))
    pulled, some, few, sizes = (
        [option for option in options if option.name in names]
        for names in (PULL_OPTIONS, PLUGIN_OPTIONS, SIMULATE_OPTIONS, PLAN_OPTIONS)
    )
    server = add_command(commands, "serve", serve, "fetch the model if need be, and serve it", options, " [NAME]")
    puller = add_command(commands, "pull", pull, "fetch and convert a model, print its folder", pulled, " [NAME]")
    for command in (server, puller):
        command.add_argument("model.model", metavar="NAME", nargs="?", default=argparse.SUPPRESS, help="as for --model")
    add_command(commands, "plugins", plugins, "list what is installed and what is chosen", some)
    summary = "replay traces: what would a policy have hit?"
    add_simulate_arguments(add_command(commands, "simulate", simulate, summary, few, " TRACE..."), OWN)
    summary = "ask a running server, any that speaks OpenAI's protocol: how fast is it?"
    add_bench_arguments(add_command(commands, "bench", bench, summary, (), " [WORKLOAD...]"), OWN)
    summary = "what fits into how much memory? From a model's configuration, without its weights"
    add_plan_arguments(add_command(commands, "plan", plan, summary, sizes, " [MODEL]"), OWN)
    return parser


def add_command(
    commands: "argparse._SubParsersAction[Parser]",
    name: str,
    command: Callable[..., int],
    summary: str,
    options: Sequence[Option],
    arguments: str = "",
) -> Parser:
    parser = commands.add_parser(
        name,
        help=summary,
        usage=f"openai-kv {name} [options]{arguments}",
        description=summary,
        epilog=EPILOG if options else None,
        allow_abbrev=False,
        formatter_class=make_formatter,
    )
    parser.set_defaults(command=command)
    for section, members in groupby(options, lambda option: option.name.rpartition(".")[0]):
        group = parser.add_argument_group(section or "general")
        for option in members:
            add_option(group, option)
    return parser


def make_formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=36)


def add_option(group: "argparse._ArgumentGroup", option: Option) -> None:
    """Values stay text: the settings check them, so that a flag and a variable are refused in the same words."""
    arguments: dict[str, Any] = {"metavar": metavar(option)}
    flags = [option.flag]
    if isinstance(option.default, bool):
        arguments = {"action": argparse.BooleanOptionalAction}
    elif isinstance(option.default, tuple):
        flags.append(option.flag.removesuffix("s"))
        arguments |= {"action": "extend", "nargs": "+"}
    group.add_argument(*flags, dest=option.name, default=argparse.SUPPRESS, help=explain(option), **arguments)


def metavar(option: Option) -> str:
    choices = get_args(option.field.annotation) if get_origin(option.field.annotation) is Literal else ()
    return "|".join(choices) or {int: "N", float: "SHARE", tuple: "NAME"}.get(type(option.default), "VALUE")


def explain(option: Option) -> str:
    """The meaning, and the default if there is one."""
    shown = show(option.default)
    return f"{option.field.description}{f' [{shown}]' if shown else ''}".replace("%", "%%")


def show(value: object) -> str:
    """A default as one would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return " ".join(value) if isinstance(value, tuple | list) else str(value)


def explain_unknown(word: str, flags: Iterable[str]) -> str:
    if not word.startswith("-"):
        return f"unexpected argument {word}"
    flag = word.partition("=")[0]
    return f"unknown flag {flag}{did_you_mean(flag, flags)}"


def say(line: str) -> None:
    """Progress goes to standard error: standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def serve(settings: Settings) -> int:
    # Until the server has its own handlers, SIGTERM ends the start as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    say("starting: PyTorch and transformers take seconds to import")
    from openai_kv import build

    return build.serve(settings)


def pull(settings: Settings) -> int:
    from openai_kv import model_store

    print(model_store.resolve(settings.model.model, home=settings.home, progress=say))
    return 0


def plugins(settings: Settings) -> int:
    from openai_kv.plugin_list import plugin_lines
    from openai_kv.plugins import load_plugins

    registry = load_plugins(settings.cache.plugins_dir)
    active = {settings.cache.eviction_policy, *settings.exporter_names, *settings.cache.tiers}
    print(*plugin_lines(registry.report(active, settings.plugin_options)), sep="\n")
    for problem in registry.problems:
        say(f"broken: {problem}")
    registry.check_options(settings.plugin_options)
    return 0


def simulate(settings: Settings, own: Mapping[str, Any]) -> int:
    from openai_kv.simulate import command
    from openai_kv.simulate.run_case import PolicySource

    return command.simulate(command.parse_options(own), PolicySource(settings.cache.plugins_dir, settings.plugins))


def bench(settings: Settings, own: Mapping[str, Any]) -> int:  # noqa: ARG001
    from openai_kv.bench import command

    return command.bench(command.parse_options(own))


def plan(settings: Settings, own: Mapping[str, Any]) -> int:
    from openai_kv.planning import command

    return command.plan(settings, own, say)


if __name__ == "__main__":
    sys.exit(main())
