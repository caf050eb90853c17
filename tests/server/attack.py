"""schemathesis against a whole server over the fake model: by hand with many examples, in CI with a few.

    python -m tests.server.attack --max-examples 560 --seed 4

Examples are per route and phase: that makes over 5,000 requests.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tests.server.serving import live_site

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "missing_required_header",
    "unsupported_method",
    "ignored_auth",
)
# A deadline among the generated headers may pass before a bad body is looked at.
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = ["400", "401", "403", "404", "405", "408", "413", "415", "429"]
"""


@dataclass(frozen=True)
class Report:
    """`exit_code` is schemathesis's own: 0 if no check failed. `referenced`: blocks, after all requests ended."""

    exit_code: int
    output: str
    statuses: Counter[int]
    referenced: int

    @property
    def unexpected(self) -> int:
        return sum(count for status, count in self.statuses.items() if status >= 500 and status != 503)


async def attack(folder: Path, max_examples: int, seed: int, phases: Collection[str]) -> Report:
    """Any model name is served, so that most requests get as far as they can."""
    keys, config = folder / "keys", folder / "schemathesis.toml"
    keys.write_text("key\n")
    config.write_text(CONFIG)
    async with live_site(model_names=("fake", "*"), auth__keys_file=str(keys)) as (server, url):
        arguments = ["--max-examples", str(max_examples), "--seed", str(seed), "-H", "Authorization: Bearer key"]
        exit_code, output = 0, ""
        for phase in phases:
            chosen = ["--phases", phase, "-c", ",".join(checks_of(phase)), "--continue-on-failure"]
            code, text = await schemathesis(folder, config, f"{url}/openapi.json", *arguments, *chosen)
            exit_code, output = exit_code or code, output + text
        await server.settle()
        statuses = Counter(stats.status for stats in server.exporter.http)
        return Report(exit_code, output, statuses, (await server.engine.stats()).cache.referenced)


def checks_of(phase: str) -> list[str]:
    """The coverage phase takes a header that isn't described for bad data, which no server refuses."""
    return [name for name in CHECKS if phase == "fuzzing" or name != "negative_data_rejection"]


async def schemathesis(folder: Path, config: Path, *arguments: str) -> tuple[int, str]:
    program = shutil.which("st", path=Path(sys.executable).parent)
    assert program is not None, "schemathesis is not installed"
    process = await asyncio.create_subprocess_exec(
        *(program, "--config-file", str(config), "--no-color", "run", *arguments),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-examples", type=int, default=560)
    parser.add_argument("--seed", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        phases = ("coverage", "fuzzing")
        report = asyncio.run(attack(Path(folder), options.max_examples, options.seed, phases))
    print(report.output)
    print(f"{report.statuses.total()} requests: {dict(sorted(report.statuses.items()))}")
    print(f"5xx but 503: {report.unexpected}; referenced blocks at the end: {report.referenced}")
    return int(bool(report.exit_code or report.unexpected or report.referenced))


if __name__ == "__main__":
    sys.exit(main())
