"""The options of `simulate` on the command line."""

import argparse
from pathlib import Path
from typing import Any

from openai_kv.cgroup import num_cpus
from openai_kv.config_values import positive
from openai_kv.simulate.cost import CostModel

COST = CostModel()


def add_arguments(parser: argparse.ArgumentParser, prefix: str) -> None:
    """Every destination begins with `prefix`."""
    parser.add_argument(f"{prefix}traces", metavar="TRACE", nargs="+", help="trace file, or folder of conversations")
    group = parser.add_argument_group("simulate")

    def add(flag: str, **arguments: Any) -> None:
        group.add_argument(flag, dest=prefix + flag.removeprefix("--").replace("-", "_"), **arguments)

    several: dict[str, Any] = {"action": "append", "default": []}
    add("--policy", metavar="NAME", help="policy, NAME:option=value, opt or infinite; repeatable, a,b too", **several)
    add("--capacity", metavar="BLOCKS", help="size of the cache in the trace's own blocks; as above", **several)
    add("--capacity-tokens", metavar="TOKENS", help="size of the cache in tokens; as above", **several)
    add("--live", action="store_true", help="hold a request's blocks while it runs")
    add("--flat", action="store_true", help="a cache without the leaf-first rule")
    add("--insert-order", choices=("head", "tail"), default="tail", help="with --flat: which block comes first [tail]")
    add("--half", choices=("all", "first", "second"), default="all", help="second: the first half only fills the cache")
    add("--jobs", metavar="N", type=positive, default=num_cpus(), help="processes [one a core]")
    add(
        "--prefill-rate",
        metavar="N",
        type=rate,
        default=COST.prefill_rate,
        help=f"prompt tokens a second [{COST.prefill_rate:g}]",
    )
    add(
        "--crossover",
        metavar="TOKENS",
        type=rate,
        default=COST.crossover,
        help=f"context that doubles a token's cost [{COST.crossover:g}]",
    )
    add(
        "--decode-rate",
        metavar="N",
        type=rate,
        default=COST.decode_rate,
        help=f"output tokens a second [{COST.decode_rate:g}]",
    )
    add("--json", metavar="FILE", type=Path, help="write the results as JSON")
    add("--csv", metavar="FILE", type=Path, help="write the results as CSV")
    add("--plot", metavar="FILE", type=Path, help="draw hit ratio against capacity (.png, .svg); repeatable", **several)


def rate(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"{text} is not above 0")
    return value
