import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_kv.parsing.events import Content
from openai_kv.parsing.reasoning import ThinkReader

CASES = [
    ("Hello", False, "", "Hello"),
    (" Hello ", False, "", " Hello "),
    ("<think>\nhm\n</think>\n\nHello", False, "hm", "Hello"),
    ("hm </think> Hello", True, "hm", "Hello"),
    ("\n\nhm, a < b", True, "hm, a < b", ""),
    ("<think> never closed </thin", False, "never closed </thin", ""),
    ("a <think>b</think> c", False, "b", "ac"),
    ("<think>x</think>y<think>z</think>w", False, "xz", "yw"),
    ("<think></think>", False, "", ""),
    ("no </think> here", False, "", "no </think> here"),
    ("a <thin k> <", False, "", "a <thin k> <"),
]


def read(pieces: list[str], *, is_inside: bool) -> tuple[str, str]:
    reader = ThinkReader(is_inside)
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    texts: dict[bool, str] = {True: "", False: ""}
    for event in events:
        assert event.text  # type: ignore[union-attr]
        texts[isinstance(event, Content)] += event.text  # type: ignore[union-attr]
    return texts[False], texts[True]


@pytest.mark.parametrize(("text", "is_inside", "reasoning", "content"), CASES)
def test_reasoning_and_content(text: str, is_inside: bool, reasoning: str, content: str) -> None:
    assert read([text], is_inside=is_inside) == (reasoning, content)
    assert read(list(text), is_inside=is_inside) == (reasoning, content)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", " ", "\n", "a", "</", "think>"])), st.booleans())
def test_any_split_reads_the_same(pieces: list[str], is_inside: bool) -> None:
    assert read(pieces, is_inside=is_inside) == read(["".join(pieces)], is_inside=is_inside)
