import re
from concurrent.futures import ThreadPoolExecutor

from openai_kv.piece_cache import ENTRY_BYTES, PieceCache, PieceEncoder
from openai_kv.text_cuts import TextCuts
from tests.tiny_tokenizer import CountingTokenizer, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
CUTS = TextCuts(re.compile(r"<\|im_start\|>|<\|im_end\|>"), frozenset({256, 257}))
TURNS = [f"<|im_start|>{number}\n{'x' * 50}<|im_end|>\n" for number in range(6)]


class Counted:
    """What was really tokenized."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.texts: list[str] = []
        self.cache = PieceCache(max_bytes)
        self.encoder = PieceEncoder(self._encode, CUTS, self.cache)

    def _encode(self, text: str) -> list[int]:
        self.texts.append(text)
        return TOKENIZER.encode(text, add_special_tokens=False)

    def encode(self, text: str, namespace: str = "") -> str:
        """What had to be tokenized for this."""
        self.texts.clear()
        assert self.encoder.encode(namespace, text) == TOKENIZER.encode(text, add_special_tokens=False)
        return "".join(self.texts)


def without_end(turn: str) -> str:
    """The end of a turn is a piece of its own, and the same everywhere."""
    return turn.removesuffix("<|im_end|>\n")


def test_a_second_turn_tokenizes_only_what_is_new() -> None:
    counted, asked = Counted(), TURNS[0] + "<|im_start|>assistant\n"
    assert counted.encode(asked) == asked
    assert counted.encode(asked) == ""
    answer = "<|im_start|>assistant\nhi"
    assert counted.encode(f"{TURNS[0]}{answer}<|im_end|>\n{TURNS[1]}") == answer + without_end(TURNS[1])


def test_a_change_in_the_middle_costs_its_piece_alone() -> None:
    counted, changed = Counted(), TURNS[2].replace("x", "y")
    counted.encode("".join(TURNS))
    assert counted.encode("".join([*TURNS[:2], changed, *TURNS[3:]])) == without_end(changed)


def test_neighbours_are_tokenized_in_one_call() -> None:
    counted = Counted()
    counted.encode("".join(TURNS))
    assert len(counted.texts) == 1


def test_namespaces_share_nothing() -> None:
    counted = Counted()
    counted.encode(TURNS[0], "one")
    assert counted.encode(TURNS[0], "other") == TURNS[0]
    assert counted.encode(TURNS[0], "one") == ""


def test_the_least_recently_used_pieces_go_first_and_bytes_are_bounded() -> None:
    counted = Counted(max_bytes=4 * (ENTRY_BYTES + 400))
    for turn in TURNS:
        counted.encode(turn)
        counted.encode(TURNS[0])
        assert 0 < counted.cache.num_bytes <= 4 * (ENTRY_BYTES + 400)
    assert counted.encode(TURNS[0]) == ""
    assert counted.encode(TURNS[1]) != ""


def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    counted = Counted(max_bytes=ENTRY_BYTES)
    assert counted.encode(TURNS[0]) == counted.encode(TURNS[0]) == TURNS[0]
    assert counted.cache.num_bytes == 0


def test_many_threads_at_once() -> None:
    counted, texts = Counted(max_bytes=2000), ["".join(TURNS[first:]) for first in range(6)] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: counted.encoder.encode("", text), texts))
    assert found == [TOKENIZER.encode(text, add_special_tokens=False) for text in texts]
    assert counted.cache.num_bytes <= 2000


def test_a_tokenizer_without_a_cache_tokenizes_all() -> None:
    text = "".join(TURNS)
    assert tiny_tokenizer().encode_chat(text, "") == tiny_tokenizer().encode(text, add_special_tokens=False)


def test_a_tokenizer_with_a_cache() -> None:
    tokenizer, text = CountingTokenizer(), "".join(TURNS)
    tokenizer.taken()
    assert tokenizer.encode_chat(text, "") == TOKENIZER.encode(text, add_special_tokens=False)
    assert tokenizer.taken() == text
    assert tokenizer.encode_chat(text, "") == TOKENIZER.encode(text, add_special_tokens=False)
    assert tokenizer.taken() == ""
