"""What is found in a text, in the order in which it was found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of the call that begun last."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Nothing more of the call comes. `is_whole`: its arguments are JSON; otherwise `markup` is all that was read."""

    is_whole: bool
    markup: str = ""


Event = Content | Reasoning | CallBegun | Arguments | CallEnded
