"""What a prefill costs: the stated model behind saved seconds and live replays."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostModel:
    """Tokens times a rate, and attention that grows with the context.

    `prefill_rate`: tokens a second without attention. `crossover`: the context, in tokens, at which attention costs a
    token as much as all the rest. `decode_rate`: output tokens a second of one request.
    """

    prefill_rate: float = 2000.0
    crossover: float = 4000.0
    decode_rate: float = 25.0

    def prefill_seconds(self, num_tokens: int) -> float:
        """The first `num_tokens` of a prompt. What a hit saves, as a hit is always at the beginning."""
        return num_tokens / self.prefill_rate * (1 + num_tokens / (2 * self.crossover))

    def service_seconds(self, hit_tokens: int, input_tokens: int, output_tokens: int) -> float:
        """From admission to the last token."""
        prefill = self.prefill_seconds(input_tokens) - self.prefill_seconds(hit_tokens)
        return prefill + output_tokens / self.decode_rate
