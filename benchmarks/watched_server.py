"""`openai-kv serve` with its event loop watched: `python -m benchmarks.watched_server LOG [options of serve]`.

LOG gets a line of JSON for each stall (`benchmarks/loop_watch.py`), and on SIGUSR1 what the engine finds when it
checks its integrity.
"""

import asyncio
import signal
import sys
from pathlib import Path

from benchmarks.loop_watch import LoopWatch
from openai_kv.build import build_context
from openai_kv.cli import build_parser
from openai_kv.config import load_settings
from openai_kv.plugins import load_plugins
from openai_kv.server.context import ServerContext
from openai_kv.server.run import run


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
    context = build_context(load_settings(values), load_plugins())
    tasks = set()
    with path.open("w", encoding="utf-8") as log:
        watch = LoopWatch(log)

        def begin(line: str) -> None:
            if line == "ready":
                watch.start()
                loop = asyncio.get_running_loop()
                loop.add_signal_handler(signal.SIGUSR1, lambda: tasks.add(asyncio.ensure_future(check(context, watch))))

        return run(context, begin)


if __name__ == "__main__":
    sys.exit(main())
