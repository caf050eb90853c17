"""The command `bench`: from options to results."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from openai_kv.bench.client import Client, explain
from openai_kv.bench.drive import run_phase
from openai_kv.bench.plot import write_plot
from openai_kv.bench.report import make_table, write_json
from openai_kv.bench.result import Result
from openai_kv.bench.workloads import WORKLOADS, Phase, Scale
from openai_kv.bench.writer import Writer
from openai_kv.complaints import did_you_mean
from openai_kv.config_values import check_writable
from openai_kv.errors import ConfigError
from openai_kv.simulate.plot import check_plot

IGNORE_EOS = {"ignore_eos": True}  # vLLM's, SGLang's, llama.cpp's and our word for answers of one length


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    workloads: tuple[str, ...]
    base_url: str
    model: str
    api_key: str
    plain: bool
    rounds: int
    seed: int
    scale: Scale
    timeout: int
    json: Path | None = None
    plot: Path | None = None


def parse_options(values: Mapping[str, Any]) -> Options:
    """`values` as `add_arguments` names them, without the prefix. Raises ConfigError."""
    own = dict(values)
    names = own.pop("workloads") or WORKLOADS
    for name in names:
        if name not in WORKLOADS:
            raise ConfigError(f"no workload {name!r}{did_you_mean(name, WORKLOADS)}; {', '.join(WORKLOADS)}")
    scale = Scale(own.pop("concurrency"), own.pop("prefix_words"), own.pop("documents"))
    key = os.environ.get(own.pop("api_key_env"), "")
    return Options(workloads=tuple(dict.fromkeys(names)), api_key=key, scale=scale, **own)


def bench(options: Options) -> int:
    """Ask, print the table, write the files; 1 if a request failed. Raises ConfigError."""
    check(options)
    model, results = asyncio.run(measure(options))
    title = f"{model} at {options.base_url}; TTFT and ITL in ms"
    for number in range(options.rounds):
        members = [result for result in results if result.round == number]
        Console().print(make_table(members, f"{title}; round {number + 1}" if options.rounds > 1 else title))
    asked = {"base_url": options.base_url, "model": model, "seed": options.seed, "scale": asdict(options.scale)}
    if options.json:
        write_json(options.json, results, asked)
    if options.plot:
        write_plot(options.plot, results)
    return tell_failures(results)


def check(options: Options) -> None:
    """What can be known to be wrong before the work begins."""
    if options.plot:
        check_plot(options.plot)
    check_writable(options.json, options.plot)


async def measure(options: Options) -> tuple[str, list[Result]]:
    """The model that was asked, and a result for each phase and round."""
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=options.base_url, headers=headers, timeout=options.timeout, limits=limits
    ) as http:
        model = options.model or await first_model(http)
        return model, await run_phases(Client(http, model, {} if options.plain else IGNORE_EOS), options)


async def first_model(http: httpx.AsyncClient) -> str:
    """What the server lists first. Raises ConfigError if it isn't there or refuses."""
    try:
        response = await http.get("models")
        if response.is_success:
            return str(response.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no server at {http.base_url}: {error}") from error
    except (ValueError, LookupError, TypeError):
        raise ConfigError(f"{http.base_url} lists no models: give --model") from None
    raise ConfigError(
        f"{response.url}: {explain(response.status_code, response.content)}{without_version(response.url)}"
    )


def without_version(url: httpx.URL) -> str:
    """A hint for a base URL that may be a server's root: its paths begin one step further in."""
    return "; most base URLs end in /v1" if url.path == "/models" else ""


async def run_phases(client: Client, options: Options) -> list[Result]:
    planned = [(number, phase) for number in range(options.rounds) for phase in phases(options, number)]
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    results: list[Result] = []
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=sum(phase.num_requests for _, phase in planned))
        for number, phase in planned:
            progress.update(task, description=phase.label)
            replies = await run_phase(client.ask, phase, lambda: progress.advance(task))
            results.append(Result(phase.label, number, tuple(replies)))
    return results


def phases(options: Options, number: int) -> Iterator[Phase]:
    """Of round `number`; each round has prompts of its own."""
    writer = Writer(f"{options.seed}/{number}")
    for name in options.workloads:
        yield from WORKLOADS[name](writer, options.scale)


def tell_failures(results: list[Result]) -> int:
    errors = [error for result in results for error in result.errors]
    if errors:
        Console(stderr=True).print(f"{len(errors)} requests failed, first: {errors[0]}", markup=False)
    return 1 if errors else 0
