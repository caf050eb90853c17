"""From the engine thread's steps to one reader: outputs merge while the reader is busy, so the buffer stays small."""

import asyncio

from openai_kv.outputs import RequestOutput


class OutputStream:
    """One request's outputs, for one reader, on the event loop."""

    def __init__(self) -> None:
        self.finished = False
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Ignored after `fail`: the end of a request that was failed is no answer."""
        if self._error is None:
            self._pending = output.after(self._pending)
            self._changed.set()

    def fail(self, error: Exception) -> None:
        """The reader gets what was put before, then this."""
        self._error = self._error or error
        self._changed.set()

    async def get(self) -> RequestOutput:
        """All that came since the last call; raises what `fail` was given."""
        await self._changed.wait()
        output, self._pending = self._pending, None
        if output is None:
            assert self._error is not None, "woken by an output or an error"
            raise self._error
        if self._error is None:
            self._changed.clear()
        self.finished = output.finish_reason is not None
        return output
