"""The options of `bench` on the command line."""

import argparse
from pathlib import Path
from typing import Any

from openai_kv.bench.workloads import WORKLOADS, Scale
from openai_kv.config_values import positive

SCALE = Scale()


def add_arguments(parser: argparse.ArgumentParser, prefix: str) -> None:
    """Every destination begins with `prefix`."""
    parser.add_argument(f"{prefix}workloads", metavar="WORKLOAD", nargs="*", help=f"{', '.join(WORKLOADS)} [all]")
    group = parser.add_argument_group("bench")

    def add(flag: str, **arguments: Any) -> None:
        group.add_argument(flag, dest=prefix + flag.removeprefix("--").replace("-", "_"), **arguments)

    add("--base-url", metavar="URL", default="http://127.0.0.1:8000/v1", help="[http://127.0.0.1:8000/v1]")
    add("--model", metavar="NAME", default="", help="[the first that the server lists]")
    add("--api-key-env", metavar="NAME", default="OPENAI_API_KEY", help="variable with the key [OPENAI_API_KEY]")
    add("--plain", action="store_true", help="send OpenAI's own fields only; answers may then end early")
    add("--rounds", metavar="N", type=positive, default=1, help="the whole again, with new prompts [1]")
    add("--seed", metavar="N", type=int, default=0, help="other prompts: a server may have cached these [0]")
    for flag, default, meaning in (
        ("--concurrency", SCALE.concurrency, "requests at once"),
        ("--prefix-words", SCALE.prefix_words, "length of the shared system prompt"),
        ("--documents", SCALE.documents, "how many for the workload pressure"),
    ):
        add(flag, metavar="N", type=positive, default=default, help=f"{meaning} [{default}]")
    add("--timeout", metavar="SECONDS", type=positive, default=300, help="for each request [300]")
    add("--json", metavar="FILE", type=Path, help="write the results as JSON")
    add("--plot", metavar="FILE", type=Path, help="draw the distributions (.png, .svg)")
