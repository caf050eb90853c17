"""Checks of values that hold token ids: what is allowed depends on the model's vocabulary."""

from dataclasses import dataclass
from typing import Any

from openai_kv.server.fields import Array, Check, Integer, Notes, Number, String
from openai_kv.server.violations import check_filled, check_length, join, wrong_type, wrong_value

MAX_DIGITS = 20


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A list of token ids; the fast way through for the long lists it is made for."""

    vocab_size: int
    maximum: int | None = None
    empty: bool = False

    def __call__(self, value: Any, path: str, notes: Notes) -> list[int]:
        if not isinstance(value, list):
            raise wrong_type(path, "an array", value)
        check_length(len(value), path, "array", self.maximum)
        if not self.empty:
            check_filled(value, path, "array")
        if all(type(token) is int and 0 <= token < self.vocab_size for token in value):
            return value
        return [self.entry(token, f"{path}[{index}]", notes) for index, token in enumerate(value)]

    def entry(self, token: Any, path: str, notes: Notes) -> int:
        number = Integer()(token, path, notes)
        if not 0 <= number < self.vocab_size:
            raise wrong_value(path, f"a token id from 0 to {self.vocab_size - 1}", number)
        return number


@dataclass(frozen=True, slots=True)
class LogitBias:
    """Token id as text -> number; returned with integer keys."""

    maximum: int
    vocab_size: int

    def __call__(self, value: Any, path: str, notes: Notes) -> dict[int, float]:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        check_length(len(value), path, "object", self.maximum)
        return dict(self.entry(name, bias, join(path, name), notes) for name, bias in value.items())

    def entry(self, name: str, bias: Any, path: str, notes: Notes) -> tuple[int, float]:
        short = len(name) <= MAX_DIGITS and name.isascii() and name.isdigit()
        if not (short and int(name) < self.vocab_size):
            raise wrong_value(path, f"for a token id from 0 to {self.vocab_size - 1}", name)
        return int(name), Number(-100, 100)(bias, path, notes)


@dataclass(frozen=True, slots=True)
class Prompts:
    """One prompt or several, text or token ids; returned as a list with one kind of entry. `empty`: of a text."""

    maximum: int
    vocab_size: int
    empty: bool = True

    def __call__(self, value: Any, path: str, notes: Notes) -> list[Any]:
        if isinstance(value, str):
            return [String(empty=self.empty)(value, path, notes)]
        if isinstance(value, list) and value and type(value[0]) in (int, float):
            return [TokenIds(self.vocab_size)(value, path, notes)]
        if not isinstance(value, list):
            raise wrong_type(path, "a string or an array", value)
        of_text = bool(value) and isinstance(value[0], str)
        entry: Check = String(empty=self.empty) if of_text else TokenIds(self.vocab_size)
        return Array(entry, self.maximum, empty=False)(value, path, notes)
