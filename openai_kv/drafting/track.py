"""What the drafter keeps of a running request, and what a source makes of it."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from openai_kv.drafting.acceptance import Tallies, no_tallies
from openai_kv.request import Request


@dataclass(frozen=True, slots=True)
class Guess:
    """Tokens that may come next; those of one `kind` are about as often right as each other."""

    kind: str
    token_ids: Sequence[int]


@dataclass(slots=True, eq=False)
class Track:
    """`text`: the request's tokens as numpy can read them; `guesses`: at what the step about to run will say."""

    request: Request
    text: "array[int]" = field(default_factory=lambda: array("q"))
    guesses: tuple[Guess, ...] = ()
    tallies: Tallies = field(default_factory=no_tallies)

    def catch_up(self) -> None:
        self.text.extend(self.request.token_ids[len(self.text) :])


Source = Callable[[Track, int], Guess | None]  # a guess of at most so many tokens; None: no idea
