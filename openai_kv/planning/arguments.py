"""The options of `plan` on the command line."""

import argparse
from pathlib import Path
from typing import Any

from openai_kv.config_values import parse_size, positive


def add_arguments(parser: argparse.ArgumentParser, prefix: str) -> None:
    """Every destination begins with `prefix`."""
    parser.add_argument(
        f"{prefix}model", metavar="MODEL", nargs="?", default="", help="a config.json, or as for --model"
    )
    group = parser.add_argument_group("plan")

    def add(flag: str, **arguments: Any) -> None:
        group.add_argument(flag, dest=prefix + flag.removeprefix("--").replace("-", "_"), **arguments)

    add("--context", metavar="N", type=positive, default=0, help="tokens of a conversation [the model's longest]")
    add("--concurrency", metavar="N", type=positive, default=1, help="conversations to hold at once [1]")
    add("--memory", metavar="SIZE", type=size, default=0, help="for weights and KV blocks together [what it needs]")
    add("--json", metavar="FILE", type=Path, help="write the plan as JSON")


def size(text: str) -> int:
    """Bytes. Raises ArgumentTypeError."""
    try:
        value = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} {error}") from None
    if not isinstance(value, int) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} should be more than nothing")
    return value
