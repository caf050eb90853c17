"""Questions of the event loop to the engine, answered in the engine thread between two steps."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from openai_kv.engine.engine import Engine
from openai_kv.engine.engine_thread import Command

T = TypeVar("T")


class ThreadCalls:
    """`submit` has a command run in the engine thread; all else is for one event loop."""

    def __init__(self, submit: Callable[[Command], None]) -> None:
        self._submit = submit
        self._open: set[asyncio.Future[Any]] = set()

    async def make(self, function: Callable[[Engine], T]) -> T:
        """The value of `function`; raises what it raises, or what `fail` was given."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._open.add(future)
        self._submit(lambda engine: _answer(future, function, engine))
        try:
            return await future
        finally:
            self._open.discard(future)

    def fail(self, error: Exception) -> None:
        """Nobody answers any more."""
        for future in self._open:
            _refuse(future, error)


def _answer(future: "asyncio.Future[T]", function: Callable[[Engine], T], engine: Engine) -> None:
    loop = future.get_loop()
    try:
        result = function(engine)
    except Exception as error:
        loop.call_soon_threadsafe(_refuse, future, error)
    else:
        loop.call_soon_threadsafe(_settle, future, result)


def _settle(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _refuse(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
