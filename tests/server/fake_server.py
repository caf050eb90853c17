"""A process that serves the fake model; each number on its standard input allows that many engine steps."""

import sys
import threading

from openai_kv.server.run import run
from tests.harness import fake_runner
from tests.server.serving import SHAPE, SteppedRunner, make_context


def main(drain_timeout: str) -> int:
    runner = SteppedRunner(fake_runner(SHAPE))
    runner.hold()
    context = make_context(runner, server__port=0, server__drain_timeout=drain_timeout)
    threading.Thread(target=allow_steps, args=(runner,), daemon=True).start()
    return run(context, lambda line: print(line, flush=True))


def allow_steps(runner: SteppedRunner) -> None:
    for line in sys.stdin:
        runner.allow(int(line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
