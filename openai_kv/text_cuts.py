"""Where a text can be cut so that its pieces have the same token ids alone as together."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from tokenizers import AddedToken

Encode = Callable[[str], list[int]]  # without the special tokens that tokenizers add around a text
SAMPLES = ("", "a", " b", "c ", " ", "\n", "\n\n d\t", "1", "é", "\u0301e", "\u2581f", "<|", "日本", "'s")


@dataclass(frozen=True, slots=True)
class TextCuts:
    """Before each of these added tokens. Fast tokenizers take added tokens out of a text before anything else."""

    pattern: re.Pattern[str]
    token_ids: frozenset[int]

    def split(self, text: str) -> list[str]:
        bounds = self.bounds(text)
        return [text[start:end] for start, end in pairwise(bounds)]

    def bounds(self, text: str) -> list[int]:
        """Where pieces begin, and the end of the text."""
        starts = (match.start() for match in self.pattern.finditer(text))
        return [0, *(start for start in starts if start), len(text)]

    def split_ids(self, ids: Sequence[int]) -> list[Sequence[int]]:
        """Those of each piece, if there are as many as `split` says."""
        starts = (index for index, token_id in enumerate(ids) if token_id in self.token_ids)
        bounds = [0, *(start for start in starts if start), len(ids)]
        return [ids[start:end] for start, end in pairwise(bounds)]


def find_cuts(hf_tokenizer: Any, encode: Encode, template: str) -> TextCuts | None:
    """Cuts before the added tokens that `template` writes; None: there are none, or they change the ids."""
    added = hf_tokenizer.added_tokens_decoder
    chosen = {
        token.content: index
        for index, token in added.items()
        if token.content in template or token.content in (hf_tokenizer.bos_token, hf_tokenizer.eos_token)
        if can_cut(token, added.values())
    }
    if not chosen:
        return None
    cuts = TextCuts(re.compile("|".join(map(re.escape, chosen))), frozenset(chosen.values()))
    return cuts if holds(cuts, encode, list(chosen)) else None


def can_cut(token: AddedToken, added: Iterable[AddedToken]) -> bool:
    """Whether it is found wherever its text is, whatever stands before it."""
    by_itself = not (token.normalized or token.lstrip or token.single_word)
    return by_itself and is_clear(token.content, [other.content for other in added if not other.normalized])


def is_clear(content: str, contents: Sequence[str]) -> bool:
    """No other one begins with it, has it inside, or ends in its beginning.

    A letter at its beginning would take part in other tokens' word boundaries, white space in their strips.
    """
    tails = "\0".join(other[1:] for other in contents) + "\0"
    starts_another = any(other != content and other.startswith(content) for other in contents)
    overlaps = any(f"{content[:length]}\0" in tails for length in range(1, len(content) + 1))
    is_bare = not content[:1].isalnum() and content == content.strip() and "\0" not in content
    return is_bare and not starts_another and not overlaps and content not in tails


def holds(cuts: TextCuts, encode: Encode, tokens: Sequence[str]) -> bool:
    """Whether it is so: by samples with what normalizers and pre-tokenizers look for at the borders of texts."""
    text = "".join(sample + token for token, sample in product(tokens, SAMPLES)) + "end"
    return [*map(encode, cuts.split(text))] == cuts.split_ids(encode(text))
