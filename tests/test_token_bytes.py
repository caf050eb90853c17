from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from openai_kv.token_bytes import bytes_as_text
from openai_kv.tokenizer import Tokenizer
from tests.tiny_tokenizer import tiny_tokenizer

PIECES = ["<s>", "▁", "▁Hello", "lo", "é", "▁▁"]


def sentencepiece_tokenizer() -> Tokenizer:
    """As Llama 2's: a space is `▁`, one is put before the text, and other bytes are `<0xNN>`."""
    vocab = [*PIECES, *(f"<0x{byte:02X}>" for byte in range(256))]
    model = models.BPE(vocab={piece: index for index, piece in enumerate(vocab)}, merges=[], byte_fallback=True)
    backend = BackendTokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<s>"])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>"))


def test_every_byte_has_its_token() -> None:
    tokenizer = tiny_tokenizer()
    assert sorted(tokenizer.token_bytes(token) or b"" for token in range(256)) == [bytes([byte]) for byte in range(256)]


def test_tokens_of_a_text_are_its_bytes() -> None:
    tokenizer = tiny_tokenizer()
    text = "Hello wörld 🎉\n\n  bar"
    assert b"".join(tokenizer.token_bytes(token) or b"" for token in tokenizer.encode(text)) == text.encode()


def test_a_special_token_is_its_text_and_an_unknown_id_nothing() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.token_bytes(tokenizer.special_ids["<|im_end|>"]) == b"<|im_end|>"
    assert tokenizer.token_bytes(100_000) is None


def test_vocabularies_of_pieces_keep_the_leading_space() -> None:
    tokenizer = sentencepiece_tokenizer()
    assert [tokenizer.token_bytes(token) for token in range(6)] == [b"<s>", b" ", b" Hello", b"lo", "é".encode(), b"  "]
    assert tokenizer.token_bytes(len(PIECES) + 0xE2) == b"\xe2"


def test_what_is_no_text_is_written_byte_by_byte() -> None:
    assert bytes_as_text(" é".encode()) == " é"
    assert bytes_as_text(b"\xe2\x80") == "bytes:\\xe2\\x80"


def test_starts_count_whole_characters() -> None:
    tokenizer = tiny_tokenizer()
    assert tokenizer.token_starts("a é!") == [0, 1, 2, 2, 3]
    assert sentencepiece_tokenizer().token_starts("lo é") == [0, 0, 1, 2, 3]
