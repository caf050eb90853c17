"""For benchmarks that start the server often: each is forked from a process that has imported it and nothing more."""

import multiprocessing
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.serving import Server, free_port, wait_ready
from openai_kv import cli

IMPORTED = ["openai_kv.build", "openai_kv.server.run", "transformers.models.llama.modeling_llama"]


@contextmanager
def forked(*options: str, environment: Mapping[str, str], log: Path | None = None) -> Iterator[Server]:
    """`openai-kv serve` with these options, up to /ready, without the seconds that imports take; killed in the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    port = free_port()
    arguments = ["serve", "--port", str(port), *options]
    process = context.Process(target=_serve, args=(arguments, environment, log))
    started = time.perf_counter()
    process.start()
    try:
        url = f"http://127.0.0.1:{port}"
        wait_ready(url, lambda: process.exitcode)
        assert process.pid is not None
        yield Server(url, process.pid, time.perf_counter() - started)
    finally:
        process.kill()
        process.join()


def _serve(arguments: list[str], environment: Mapping[str, str], log: Path | None) -> None:
    if log is not None:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    os.environ.update(environment)
    raise SystemExit(cli.main(arguments))
