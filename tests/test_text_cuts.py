"""Pieces of texts have the same ids alone as together, for the tokenizers that get cuts at all."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer
from transformers import PreTrainedTokenizerFast

from openai_kv.piece_cache import PieceCache, PieceEncoder
from openai_kv.text_cuts import TextCuts, find_cuts
from openai_kv.tokenizer import Tokenizer

START, END = "<|start|>", "<|end|>"
TEMPLATE = f"{START}{END}"


class Fast:
    """A tokenizer whose model knows every byte, and the pieces "▁a", "ab" and two spaces."""

    def __init__(self, *tokens: AddedToken, normalizer: Any = None, pre_tokenizer: Any = None) -> None:
        alphabet = sorted({*pre_tokenizers.ByteLevel.alphabet(), "▁"})
        merges = [("▁", "a"), ("a", "b"), ("Ġ", "Ġ"), ("Ġ", "a")]
        vocabulary = [*alphabet, *("".join(pair) for pair in merges)]
        backend = BackendTokenizer(models.BPE({token: index for index, token in enumerate(vocabulary)}, merges))
        backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        if normalizer is not None:
            backend.normalizer = normalizer
        backend.add_special_tokens([*(tokens or map(special, (START, END)))])
        self.hf = PreTrainedTokenizerFast(tokenizer_object=backend)
        self.hf.chat_template = TEMPLATE

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.hf.encode(text, add_special_tokens=False)
        return ids

    def cuts(self) -> TextCuts | None:
        return find_cuts(self.hf, self.encode, TEMPLATE)


def special(content: str, **flags: bool) -> AddedToken:
    return AddedToken(content, normalized=False, special=True, **flags)


def metaspace(scheme: str) -> Any:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme)


BYTES_OF_LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
KINDS = {
    "byte_level": Fast(),
    "prefix_space": Fast(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "composed": Fast(normalizer=normalizers.NFC()),
    "first_metaspace": Fast(pre_tokenizer=metaspace("first")),
    "every_metaspace": Fast(pre_tokenizer=metaspace("always")),
    "legacy_llama": Fast(normalizer=BYTES_OF_LLAMA, pre_tokenizer=pre_tokenizers.Split("x", "isolated")),
    "other_strips": Fast(special(START, rstrip=True), special(END), special("<t>", lstrip=True, rstrip=True)),
    "other_words": Fast(special(START), special(END), special("ab", single_word=True)),
    "other_normalized": Fast(special(START), special(END), AddedToken("a b", normalized=True)),
}
TEXTS = st.lists(
    st.sampled_from([START, END, "<t>", "<|", "start|>", "a", "ab", " ", "\n", "e", "\u0301", "▁", "é", "x"])
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(texts=st.lists(TEXTS.map("".join), min_size=1, max_size=4))
def test_cached_ids_are_those_of_the_tokenizer(kind: str, texts: list[str]) -> None:
    fast = KINDS[kind]
    cuts = fast.cuts()
    assert cuts is not None
    encoder, text = PieceEncoder(fast.encode, cuts, PieceCache(4096)), ""
    for more in texts:
        text += more
        assert encoder.encode("", text) == fast.encode(text)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=50)
@given(texts=st.lists(TEXTS.map("".join), min_size=1, max_size=4))
def test_so_are_the_places_of_breakpoints(kind: str, texts: list[str]) -> None:
    cached, plain = Tokenizer(KINDS[kind].hf, cache_bytes=4096), Tokenizer(KINDS[kind].hf)
    text = "".join(texts)
    for ends in (range(0, len(text) + 1, 3), range(len(text) + 1)):
        assert cached.encode_to(text, ends, "") == plain.encode_to(text, ends, "")


REFUSED = {
    "strips": [special(START, lstrip=True)],
    "words": [special(START, single_word=True)],
    "normalized": [AddedToken(START, normalized=True)],
    "begins_another": [special(START), special(START + ">")],
    "inside_another": [special(START), special("a" + START)],
    "overlaps_another": [special(START), special("a<|")],
    "none_in_the_template": [special("<other>")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_a_cut_could_change_something_there_is_none(name: str) -> None:
    assert Fast(*REFUSED[name]).cuts() is None


def test_a_tokenizer_that_looks_over_added_tokens_is_found_out() -> None:
    fast = Fast()
    assert find_cuts(fast.hf, lambda text: fast.encode(text[:1] + text), TEMPLATE) is None


def test_every_piece_but_the_first_begins_with_a_cut() -> None:
    cuts = KINDS["byte_level"].cuts()
    assert cuts is not None
    assert cuts.split(f"a{START}b{END}{END}") == ["a", f"{START}b", END, END]
    assert cuts.split(f"{START}b") == [f"{START}b"]
    assert cuts.split("b") == ["b"]
