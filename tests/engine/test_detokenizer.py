import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_kv.engine.detokenizer import Detokenizer, StopStrings
from openai_kv.request import FinishReason, Request, RequestInfo, SamplingParams
from openai_kv.tokenizer import Tokenizer
from tests.tiny_tokenizer import byte_level_tokenizer, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
WORDS = byte_level_tokenizer(["a", "Ã", "END"])  # the second is the first byte of é


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


def test_skipped_tokens_are_told_of_at_once_and_hold_nothing_back() -> None:
    tokens = "é" + "<|im_start|>" * 3
    assert starts(tokens) == [(), (0, 0), (1,), (1,), (1,)]
    cut = [*TOKENIZER.encode("é<|im_start|>"), *TOKENIZER.encode("é")[:1], *TOKENIZER.encode("<|im_end|>")]
    assert run(cut, make_request())[0] == ["", "é", "", "", "\ufffd"]


def test_a_special_stop_string_is_kept_on_request() -> None:
    request = make_request(stop=("<|im_start|>",), include_stop_str_in_output=True)
    assert "".join(run(TOKENIZER.encode("a<|im_start|>b"), request)[0]) == "a<|im_start|>"


def test_special_tokens_are_shown_on_request() -> None:
    pieces, _ = run(TOKENIZER.encode("a<|im_start|>b"), make_request(ignore_eos=True, skip_special_tokens=False))
    assert "".join(pieces) == "a<|im_start|>b"


def test_shown_special_tokens_can_be_part_of_a_stop_string() -> None:
    request = make_request(stop=("|>b",), skip_special_tokens=False)
    pieces, stop = run(TOKENIZER.encode("a<|im_start|>bc"), request)
    assert ("".join(pieces), stop) == ("a<|im_start", "|>b")


def test_the_stop_string_is_kept_on_request_and_nothing_after_it() -> None:
    request = make_request(stop=("END", "ND t"), include_stop_str_in_output=True)
    assert run(TOKENIZER.encode("one END two"), request) == (["o", "n", "e", " ", "", "", "END"], "END")


def test_a_stop_string_completed_by_a_replaced_character() -> None:
    """The second byte of the first character never comes: what is shown for it ends the wait for it."""
    broken, rest = TOKENIZER.encode("é")[:1], TOKENIZER.encode("é.")
    pieces, stop = run([*broken, *rest], make_request(stop=("\ufffdé",)))
    assert ("".join(pieces), stop) == ("", "\ufffdé")


def starts(text: str, **params: object) -> list[tuple[int, ...]]:
    """Where the tokens begin that are told of with each piece."""
    detokenizer, request = Detokenizer(TOKENIZER), make_request(**{"logprobs": 0, **params})
    detokenizer.add(request)
    found, tokens = [], TOKENIZER.encode(text)
    for number, token in enumerate(tokens, 1):
        request.token_ids.append(token)
        stop = detokenizer.append(request, token)
        if stop is not None or number == len(tokens):
            request.finish_reason = FinishReason.STOP
        found.append(detokenizer.take(request).token_starts)
        if stop is not None:
            break
    return found


def test_tokens_are_told_of_with_their_text() -> None:
    assert starts("aé!") == [(0,), (), (1, 1), (2,)], "both bytes of a character together"
    assert starts("xENxy", stop=("END",)) == [(0,), (), (), (1, 2, 3), (4,)]
    assert starts("aEND", stop=("END",)) == [(0,), (), (), (1, 1, 1)], "what was dropped began where the text ends"
    assert starts("aEND", stop=("END",), include_stop_str_in_output=True) == [(0,), (), (), (1, 2, 3)]
    assert starts("aé!", logprobs=None) == [(), (), (), ()], "nobody asks"


@pytest.mark.parametrize(("visible", "text"), [(False, "a\ufffd"), (True, "a\ufffdEND")])
def test_a_token_that_ends_the_text_by_itself(visible: bool, text: str) -> None:
    """Its text is not searched for stop strings."""
    detokenizer, request = Detokenizer(WORDS), make_request(stop=("ND",), logprobs=0)
    detokenizer.add(request)
    for token in (0, 1):
        detokenizer.append(request, token)
    shown = detokenizer.take(request)
    detokenizer.append_end(request, 2, visible=visible)
    request.finish_reason = FinishReason.STOP
    rest = detokenizer.take(request)
    assert shown.text + rest.text == text
    assert (shown.token_starts, rest.token_starts) == ((0,), (1, 1))


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
