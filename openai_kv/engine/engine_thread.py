"""The thread that owns the engine: takes commands between steps, then steps."""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from openai_kv.engine.engine import Engine
from openai_kv.outputs import RequestOutput

logger = logging.getLogger(__name__)
IDLE_SECONDS_BEFORE_CHECK = 1.0
SECONDS_BETWEEN_LOOKS = 0.002
Command = Callable[[Engine], object]


class EngineListener(Protocol):
    """Whoever is told; all calls come from the engine thread."""

    def on_ready(self, engine: Engine) -> None: ...

    def on_outputs(self, outputs: Sequence[RequestOutput]) -> None: ...

    def on_dead(self, error: BaseException) -> None: ...


class EngineThread:
    """Builds the engine first (this loads the model), then runs until `stop`."""

    def __init__(self, build: Callable[[], Engine], listener: EngineListener) -> None:
        self._build = build
        self._listener = listener
        self._inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="openai-kv-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, command: Command) -> None:
        """Have `command` run between two steps. Any thread."""
        self._inbox.put(command)

    def stop(self) -> None:
        """End after the current step; blocks until the thread has ended."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            engine = self._build()
            engine.wake_with(lambda: self.submit(_look_again))
            self._listener.on_ready(engine)
            while self._take_commands(engine):
                self._step(engine)
            engine.close()
        except BaseException as error:  # whatever ended the thread, the clients must hear of it
            self._listener.on_dead(error)

    def _take_commands(self, engine: Engine) -> bool:
        """Run all queued commands, waiting for one while there is nothing to step; False: stop."""
        if not engine.has_work and not self._run_command(self._wait(engine), engine):
            return False
        if engine.awaits_tiers and not self._run_command(self._pause(), engine):
            return False
        while not self._inbox.empty():
            if not self._run_command(self._inbox.get(), engine):
                return False
        return True

    def _run_command(self, command: Command | None, engine: Engine) -> bool:
        if command is not None:
            command(engine)
        return command is not None

    def _wait(self, engine: Engine) -> Command | None:
        try:
            return self._inbox.get(timeout=IDLE_SECONDS_BEFORE_CHECK)
        except queue.Empty:
            engine.check_integrity()
        return self._inbox.get()

    def _pause(self) -> Command | None:
        """The next command; after a moment without one it is time to see how long the tiers take."""
        try:
            return self._inbox.get(timeout=SECONDS_BETWEEN_LOOKS)
        except queue.Empty:
            return _look_again

    def _step(self, engine: Engine) -> None:
        if not engine.has_work:
            return
        try:
            outputs = engine.step()
        except Exception:
            logger.exception("an engine step failed; its requests end with an error, the engine goes on")
            outputs = engine.fail_running()
        self._listener.on_outputs(outputs)


def _look_again(engine: Engine) -> None:
    """There is news for the next step."""
