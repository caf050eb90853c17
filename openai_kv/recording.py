"""Record what the server is asked as a trace for `simulate`: hashes and times, never text. See docs/simulate.md."""

import json
import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

from openai_kv.errors import ConfigError
from openai_kv.request import Request

logger = logging.getLogger(__name__)
ID_BYTES = 6  # exact in any JSON reader
TOKEN_BYTES = 8


class TraceRecorder:
    """One line a request that ended. One thread only; a full disk ends the recording, not the server."""

    def __init__(self, file: TextIO, block_tokens: int) -> None:
        self._file: TextIO | None = file
        self._block_tokens = block_tokens
        self._epoch = time.time() - time.monotonic()
        self._key = secrets.token_bytes(16)
        self._write({"format": "openai-kv-trace", "version": 1, "block_tokens": block_tokens})

    def record(self, request: Request) -> None:
        """A request that never ran, or bypassed the cache, never looked anything up: it is left out."""
        info = request.info
        if request.first_scheduled_time is None or info.retention.bypasses:
            return
        known = request.token_ids[: max(request.num_computed_tokens, request.num_prompt_tokens)]
        self._write(
            {
                "timestamp": round(self._epoch + request.arrival_time, 3),
                "input_length": request.num_prompt_tokens,
                "output_length": request.num_output_tokens,
                "hash_ids": list(self._chain(info.namespace, known)),
                "kind": info.kind,
                "turn": info.turn,
                "session_id": None if info.session_id is None else self._hash(b"session" + info.session_id.encode()),
            }
        )

    def _chain(self, namespace: str, token_ids: Sequence[int]) -> Iterator[int]:
        """Ids of the whole blocks; each stands for all before it too."""
        size = self._block_tokens
        before = self._hash(b"namespace" + namespace.encode())
        for start in range(0, len(token_ids) - size + 1, size):
            block = b"".join(token.to_bytes(TOKEN_BYTES) for token in token_ids[start : start + size])
            before = self._hash(before.to_bytes(ID_BYTES) + block)
            yield before

    def _hash(self, data: bytes) -> int:
        return int.from_bytes(blake2b(data, digest_size=ID_BYTES, key=self._key).digest())

    def _write(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
        except OSError:
            logger.exception("the recording of requests ends here")
            self._file = None


def open_recording(path: str) -> TextIO:
    """Appends to what is there. Raises ConfigError."""
    try:
        return Path(path).expanduser().open("a", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cache.record_trace = {path!r}: {error.strerror}") from None
