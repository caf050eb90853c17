"""`openai-kv serve` with its event loop watched: `python -m benchmarks.watched_server LOG [options of serve]`.

LOG gets a line of JSON for each stall (`benchmarks/loop_watch.py`), and on SIGUSR1 what the engine finds when it
checks its integrity. With `--model fake` the tests' model answers: much faster, so that the server has more to do.
"""

import asyncio
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.loop_watch import LoopWatch
from openai_kv.build import build_context
from openai_kv.cli import build_parser
from openai_kv.config import load_settings
from openai_kv.plugins import load_plugins
from openai_kv.server.context import ServerContext
from openai_kv.server.run import listen, run
from tests.harness import Shape, fake_runner
from tests.server.serving import SteppedRunner, make_context

FAKE = "fake"
SEND_BUFFER = 16384
SHAPE = Shape(
    num_blocks=4096,
    block_size=16,
    max_num_seqs=64,
    max_num_batched_tokens=8192,
    max_model_len=8192,
    num_hidden_slots=64,
)


def real_context(values: Mapping[str, Any]) -> ServerContext:
    return build_context(load_settings(values), load_plugins())


def fake_context(values: Mapping[str, Any]) -> ServerContext:
    settings = {name.replace(".", "__"): value for name, value in values.items() if name != "model.model"}
    exporters = load_plugins().create_exporters(("prometheus",), {})
    return make_context(SteppedRunner(fake_runner(SHAPE)), SHAPE, exporters=exporters, **settings)


def small_listener(context: ServerContext) -> socket.socket:
    """The system keeps up to 4 MiB for whoever does not read, and nobody would notice a slow reader."""
    listener = listen(context)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    return listener


async def check(context: ServerContext, watch: LoopWatch) -> None:
    try:
        await context.engine.check_integrity()
    except Exception as error:
        watch.write(integrity=repr(error))
    else:
        watch.write(integrity="clean", worst_ms=round(watch.worst * 1e3, 1))


def main() -> int:
    path, options = Path(sys.argv[1]), sys.argv[2:]
    values = vars(build_parser().parse_args(["serve", *options]))
    del values["command"]
    context = fake_context(values) if values.get("model.model") == FAKE else real_context(values)
    tasks = set()
    with path.open("w", encoding="utf-8") as log:
        watch = LoopWatch(log)

        def begin(line: str) -> None:
            if line == "ready":
                watch.start()
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.add(asyncio.ensure_future(check(context, watch))))

        return run(context, begin, small_listener)


if __name__ == "__main__":
    sys.exit(main())
