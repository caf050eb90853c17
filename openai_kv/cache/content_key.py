"""The key of a block's content outside of this process: a chain of hashes over all that K and V depend on."""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from openai_kv.cache.block import TokenIds

KEY_BYTES = 32


def root_content_key(identity: str, namespace: str) -> bytes:
    """What the first blocks of a namespace start from; `identity` names the model, its types and the block size."""
    return blake2b(f"{identity}\0{namespace}".encode(), digest_size=KEY_BYTES).digest()


def content_key(before: bytes, tokens: TokenIds) -> bytes:
    """The key of a full block by its parent's."""
    return blake2b(before + array("q", tokens).tobytes(), digest_size=KEY_BYTES).digest()


def window_key(key: bytes) -> bytes:
    """Of the part of a block, by its content key, that belongs to layers which see a window only."""
    return blake2b(key, digest_size=KEY_BYTES, person=b"window").digest()


def content_keys(before: bytes, blocks: Sequence[TokenIds]) -> list[bytes]:
    """Of a chain of full blocks, the first of which follows `before`."""
    keys = [before]
    for tokens in blocks:
        keys.append(content_key(keys[-1], tokens))
    return keys[1:]
