"""The bytes that each token adds inside a text."""

import re
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """Of a transformers tokenizer with a `tokenizers` backend."""

    def __init__(self, hf_tokenizer: Any) -> None:
        self._backend = hf_tokenizer.backend_tokenizer
        self._added = {index: token.content for index, token in hf_tokenizer.added_tokens_decoder.items()}
        decoder = self._backend.decoder
        kind = b"" if decoder is None else decoder.__getstate__()
        self._alphabet = byte_alphabet() if b"ByteLevel" in kind else {}
        self._has_byte_tokens = b"ByteFallback" in kind

    def of(self, token_id: int) -> bytes | None:
        """A leading space is kept; None: the tokenizer does not know this id. A special token's are its text's."""
        token = self._backend.id_to_token(token_id)
        if token is None:
            return None
        if token_id in self._added:
            return str(self._added[token_id]).encode()
        if all(character in self._alphabet for character in token):
            return bytes(self._alphabet[character] for character in token)
        byte = BYTE_TOKEN.fullmatch(token) if self._has_byte_tokens else None
        return bytes([int(byte[1], 16)]) if byte else self._decoded(token_id).encode()

    def _decoded(self, token_id: int) -> str:
        """What a second one adds: the first may lose a space at the beginning of the text."""
        once, twice = (self._backend.decode([token_id] * count, skip_special_tokens=False) for count in (1, 2))
        return str(twice[len(once) :])


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level vocabularies, as GPT-2's `bytes_to_unicode` has them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def bytes_as_text(data: bytes) -> str:
    """As OpenAI writes a token whose bytes are no UTF-8 by themselves: `bytes:` and each byte as `\\xNN`."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
