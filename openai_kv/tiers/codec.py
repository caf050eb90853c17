"""One block as a record: its key, its tokens, K and V or hidden states, and a checksum over all of it."""

import struct
import zlib
from collections.abc import Sequence

from openai_kv.errors import CorruptRecordError

MAGIC = b"OKV1"  # another layout gets another one: what was written before is then recomputed
HEADER = struct.Struct("<4sI32sIQ")  # magic, CRC-32 of all that follows, key, number of tokens, bytes of the payload


def encode(key: bytes, token_ids: Sequence[int], payload: bytes) -> bytes:
    """`key` of 32 bytes; token ids below 2**32."""
    tokens = struct.pack(f"<{len(token_ids)}I", *token_ids)
    header = HEADER.pack(MAGIC, 0, key, len(token_ids), len(payload))
    checksum = zlib.crc32(payload, zlib.crc32(tokens, zlib.crc32(header[8:])))
    return b"".join((HEADER.pack(MAGIC, checksum, key, len(token_ids), len(payload)), tokens, payload))


def record_bytes(block_size: int, block_bytes: int) -> int:
    return HEADER.size + 4 * block_size + block_bytes


def decode(record: bytes, key: bytes, token_ids: Sequence[int], *sizes: int) -> memoryview:
    """The payload, of one of `sizes`. Raises CorruptRecordError for anything but a sound record of this very block."""
    start = HEADER.size + 4 * len(token_ids)
    num_bytes = len(record) - start
    if num_bytes not in sizes:
        wanted = " or ".join(str(start + size) for size in sizes)
        raise CorruptRecordError(f"a record of {len(record)} bytes, not {wanted}")
    magic, checksum, known, num_tokens, length = HEADER.unpack_from(record)
    view = memoryview(record)
    if magic != MAGIC or checksum != zlib.crc32(view[8:]):
        raise CorruptRecordError("a record with a wrong checksum")
    tokens = struct.unpack_from(f"<{len(token_ids)}I", record, HEADER.size)
    if (known, num_tokens, length) != (key, len(token_ids), num_bytes) or tokens != tuple(token_ids):
        raise CorruptRecordError("a sound record of other tokens")
    return view[start:]
