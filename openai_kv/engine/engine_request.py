"""What the server hands the engine."""

import secrets
from dataclasses import dataclass

from openai_kv.request import Request, RequestInfo, SamplingParams


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate. The sequences of one HTTP request share `group` (default: a group of its own).

    `choice` numbers the answers to one prompt, which the first of them computes; the lowest `priority` goes first.
    """

    info: RequestInfo
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    group: str = ""
    choice: int = 0
    priority: int = 0

    @property
    def num_queued_tokens(self) -> int:
        return 0 if self.choice else len(self.prompt_token_ids)

    def choose_seed(self) -> int:
        """0 where nothing is drawn: asking the system for a number lets another thread run first."""
        if self.params.seed is not None:
            return self.params.seed
        return secrets.randbits(63) if self.params.max_tokens else 0

    def begin(self, arrival_time: float) -> Request:
        """The sequence as the engine follows it."""
        return Request(
            info=self.info,
            prompt_token_ids=self.prompt_token_ids,
            params=self.params,
            arrival_time=arrival_time,
            seed=self.choose_seed(),
            choice=self.choice,
            priority=self.priority,
        )
