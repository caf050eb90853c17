import pytest

from openai_kv.errors import CorruptRecordError
from openai_kv.tiers.codec import decode, encode, record_bytes

KEY, TOKENS, PAYLOAD = b"k" * 32, (1, 2, 2**32 - 1), bytes(range(200))
SIZES = (200, 100)
RECORD = encode(KEY, TOKENS, PAYLOAD)


def test_what_was_put_comes_back() -> None:
    assert decode(RECORD, KEY, TOKENS, *SIZES) == PAYLOAD
    assert decode(encode(KEY, TOKENS, PAYLOAD[:100]), KEY, TOKENS, *SIZES) == PAYLOAD[:100]
    assert len(RECORD) == record_bytes(3, 200)


@pytest.mark.parametrize("position", range(len(RECORD)))
def test_any_flipped_bit_is_found(position: int) -> None:
    damaged = bytearray(RECORD)
    damaged[position] ^= 1 << position % 8
    with pytest.raises(CorruptRecordError):
        decode(bytes(damaged), KEY, TOKENS, *SIZES)


@pytest.mark.parametrize("record", [b"", RECORD[:-1], RECORD[:40], RECORD + b"x", bytes(len(RECORD))])
def test_a_record_of_another_length_is_none(record: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decode(record, KEY, TOKENS, *SIZES)


@pytest.mark.parametrize(("key", "tokens"), [(b"l" * 32, TOKENS), (KEY, (1, 2, 3)), (KEY, (2, 1, 2**32 - 1))])
def test_a_sound_record_of_other_tokens_is_refused(key: bytes, tokens: tuple[int, ...]) -> None:
    with pytest.raises(CorruptRecordError, match="other tokens"):
        decode(encode(key, tokens, PAYLOAD), KEY, TOKENS, *SIZES)


def test_a_record_of_another_model_is_of_another_length_or_key() -> None:
    with pytest.raises(CorruptRecordError):
        decode(RECORD, KEY, TOKENS, 199, 100)
