"""How long a step takes by its rows: the loaded model is timed at start, so that nobody has to guess."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.outputs import ScheduledRequest, SchedulerOutput
from openai_kv.request import SamplingParams

CONTEXT = 64
ROWS = (1, 2, 4, 8, 16, 32, 64)
TURNS = 3
SECONDS = 2.0  # after so long there is no further turn
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class _Timing:
    """Steps of one made-up request; they write over the pool, which must hold nothing yet."""

    runner: ModelRunner
    context: int
    clock: Callable[[], float]

    def seconds(self, rows: int) -> float:
        step = self._step(rows, self.context, rows - 1)
        start = self.clock()
        self.runner.execute_model(step)
        return self.clock() - start

    def warm_up(self) -> None:
        """Also fills the context with K and V: what an empty pool holds may be slow to add up."""
        if self.context:
            self.runner.execute_model(self._step(self.context, 0, 0))
        self.seconds(1)

    def _step(self, rows: int, computed: int, drafts: int) -> SchedulerOutput:
        tokens, blocks = [0] * rows, range(-(-(computed + rows) // self.runner.kv_pool.block_size))
        request = ScheduledRequest(
            "timed",
            tokens,
            computed,
            blocks,
            samples=True,
            params=GREEDY,
            seed=0,
            prompt_token_ids=tokens,
            output_token_ids=(),
            window_block_ids=self._window_blocks(len(blocks)),
            num_drafts=drafts,
        )
        return SchedulerOutput(0, (request,))

    def _window_blocks(self, count: int) -> Sequence[int]:
        """Some of a window group, over and over where it has fewer; not 0, the null block: that one stays zeros."""
        usable = self.runner.num_window_blocks - 1
        return [1 + index % usable for index in range(count)] if usable > 0 else ()


def measure_steps(
    runner: ModelRunner, max_rows: int, clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds of a step by its rows, the least of some turns, as far as pool and `max_rows` allow."""
    room = min(runner.kv_pool.num_blocks * runner.kv_pool.block_size, runner.info.max_model_len)
    timing = _Timing(runner, min(CONTEXT, room // 2, max_rows), clock)
    sizes = [rows for rows in ROWS if rows <= min(room - timing.context, max_rows)]
    timing.warm_up()
    begun, found = clock(), dict.fromkeys(sizes, float("inf"))
    for _ in range(TURNS):
        found = {rows: min(before, timing.seconds(rows)) for rows, before in found.items()}
        if clock() - begun > SECONDS:
            break
    return found
