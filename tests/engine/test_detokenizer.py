from hypothesis import given
from hypothesis import strategies as st

from openai_kv.engine.detokenizer import Detokenizer, StopStrings
from openai_kv.request import FinishReason, Request, RequestInfo, SamplingParams
from openai_kv.tokenizer import Tokenizer
from tests.tiny_tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def make_request(**params: object) -> Request:
    return Request(RequestInfo("r", 1), (0,), SamplingParams(max_tokens=99, **params), 0.0)  # type: ignore[arg-type]


def run(tokens: list[int], request: Request, tokenizer: Tokenizer = TOKENIZER) -> tuple[list[str], str | None]:
    """Feed tokens as the scheduler does; the pieces shown after each, and the stop string."""
    detokenizer = Detokenizer(tokenizer)
    detokenizer.add(request)
    pieces, stop = [], None
    for number, token in enumerate(tokens, 1):
        request.token_ids.append(token)
        stop = detokenizer.append(request, token)
        if stop is not None or number == len(tokens):
            request.finish_reason = FinishReason.STOP
        pieces.append(detokenizer.take(request).text)
        if stop is not None:
            break
    return pieces, stop


def test_text_is_shown_as_it_comes() -> None:
    assert run(TOKENIZER.encode("abc"), make_request()) == (["a", "b", "c"], None)


def test_incomplete_utf8_is_held_back_until_it_is_complete() -> None:
    assert run(TOKENIZER.encode("é!"), make_request()) == (["", "é", "!"], None)


def test_incomplete_utf8_at_the_end_becomes_the_replacement_character() -> None:
    assert run(TOKENIZER.encode("aé")[:-1], make_request()) == (["a", "\ufffd"], None)


def test_a_stop_string_over_token_boundaries_is_never_shown() -> None:
    pieces, stop = run(TOKENIZER.encode("one END two"), make_request(stop=("END",)))
    assert ("".join(pieces), stop) == ("one ", "END")


def test_a_beginning_that_does_not_become_a_stop_string_is_released() -> None:
    pieces, stop = run(TOKENIZER.encode("xENxy"), make_request(stop=("END",)))
    assert (pieces, stop) == (["x", "", "", "ENx", "y"], None)


def test_a_held_beginning_is_shown_at_the_end() -> None:
    pieces, stop = run(TOKENIZER.encode("aEN"), make_request(stop=("END",)))
    assert ("".join(pieces), stop) == ("aEN", None)


def test_stop_string_of_a_multi_byte_character() -> None:
    pieces, stop = run(TOKENIZER.encode("aé!"), make_request(stop=("é",)))
    assert ("".join(pieces), stop) == ("a", "é")


def test_the_earliest_match_wins_and_at_one_place_the_longest() -> None:
    text = StopStrings(("bcd", "c", "bc"))
    text.append("abcd")
    assert (text.take(last=False), text.matched) == ("a", "bcd")


def test_min_tokens_protects_from_stop_strings() -> None:
    pieces, stop = run(TOKENIZER.encode("ababab"), make_request(stop=("ab",), min_tokens=3))
    assert ("".join(pieces), stop) == ("ab", "ab")


def test_special_token_named_as_a_stop_string() -> None:
    pieces, stop = run(TOKENIZER.encode("a<|im_start|>b"), make_request(stop=("<|im_start|>",)))
    assert ("".join(pieces), stop) == ("a", "<|im_start|>")


def test_special_tokens_are_not_shown() -> None:
    pieces, stop = run(TOKENIZER.encode("a<|im_start|>b"), make_request(ignore_eos=True))
    assert ("".join(pieces), stop) == ("ab", None)


@given(
    text=st.text(alphabet="abé", max_size=12),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3),
    cuts=st.integers(1, 4),
)
def test_any_split_shows_the_text_before_the_first_stop(text: str, stops: list[str], cuts: int) -> None:
    follower = StopStrings(tuple(stops))
    shown = ""
    for start in range(0, len(text), cuts):
        if follower.matched is None:
            follower.append(text[start : start + cuts])
            shown += follower.take(last=False)
            assert not any(stop in shown for stop in stops)
    shown += follower.take(last=True)
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    if cuts >= len(text):  # all at once: the earliest match in the text
        assert shown == text[: min(ends, default=len(text))]
    assert text.startswith(shown)
    assert (follower.matched is None) == (not ends)
