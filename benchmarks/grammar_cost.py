"""What a grammar costs in decode speed: the same batch with and without one, A B A B, in one process.

`python -m benchmarks.grammar_cost [--batch 8] [--tokens 128] [--rounds 4]`, on a machine that does nothing else. Also
says where the time goes: masks are made in other threads while the model runs, so only the wait for them counts.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace

from openai_kv import model_store
from openai_kv.config import default_home
from openai_kv.grammar.compiler import CompiledGrammar, GrammarCompiler, vocabulary_of
from openai_kv.grammar.lark import Lark
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.parsing.grammars import OutputGrammar
from openai_kv.request import Grammar, Request, RequestInfo, SamplingParams, TokenConstraint
from openai_kv.tokenizer import Tokenizer
from tests.harness import Run, Shape, build_engine

# An endless list of records: a bound so high that no round reaches the end, and every kind of token on the way.
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 3}, "age": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": RECORD, "minItems": 10_000}
SHAPE = Shape(num_blocks=4096, block_size=16, max_num_seqs=64, max_num_batched_tokens=2048, max_model_len=1024)


@dataclass
class Meter:
    """Seconds: masks being made, in threads; the engine waiting for one, and following a drawn token."""

    made: float = 0.0
    waited: float = 0.0
    followed: float = 0.0

    def show(self, steps: int) -> str:
        made, waited, followed = (seconds / steps * 1e3 for seconds in (self.made, self.waited, self.followed))
        return f"a step: masks made in {made:.2f} ms of threads, waited for {waited:.2f}, followed in {followed:.2f}"


@dataclass
class MeteredGrammar:
    """The same grammar, metered."""

    inner: CompiledGrammar
    meter: Meter

    def start(self) -> TokenConstraint:
        return MeteredConstraint(replace(self.inner, submit=self.submit).start(), self.meter)

    def submit(self, make: Callable[[], bytes]) -> "Future[bytes]":
        def timed() -> bytes:
            start = time.perf_counter()
            mask = make()
            self.meter.made += time.perf_counter() - start
            return mask

        return self.inner.submit(timed)


@dataclass
class MeteredConstraint:
    inner: TokenConstraint
    meter: Meter

    @property
    def finished(self) -> bool:
        return self.inner.finished

    @property
    def failed(self) -> bool:
        return self.inner.failed

    def mask(self) -> bytes:
        start = time.perf_counter()
        mask = self.inner.mask()
        self.meter.waited += time.perf_counter() - start
        return mask

    def advance(self, token_id: int) -> None:
        start = time.perf_counter()
        self.inner.advance(token_id)
        self.meter.followed += time.perf_counter() - start


def requests(
    tokenizer: Tokenizer, grammar: Grammar | None, numbers: Iterator[int], batch: int, tokens: int
) -> list[Request]:
    params = [SamplingParams(max_tokens=tokens, seed=row, ignore_eos=True, grammar=grammar) for row in range(batch)]
    prompt = tuple(tokenizer.render_chat([{"role": "user", "content": "Write a list of people as JSON."}]))
    return [
        Request(RequestInfo(f"r{next(numbers)}", len(prompt)), prompt, each, time.monotonic(), row)
        for row, each in enumerate(params)
    ]


def seconds_per_step(run: Run, batch: list[Request]) -> float:
    """Of the decode steps: the first one, with the prompts, is left out."""
    run.add(*batch)
    run.step()
    start, steps = time.perf_counter(), 0
    while run.engine.has_work:
        run.step()
        steps += 1
    return (time.perf_counter() - start) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    folder = model_store.resolve(arguments.model, home=default_home(), progress=print)
    tokenizer = Tokenizer.load(folder)
    settings = RunnerSettings(num_blocks=SHAPE.num_blocks, max_model_len=SHAPE.max_model_len, cache_dir=default_home())
    runner = ModelRunner.load(folder, arguments.model, settings)
    compiler = GrammarCompiler(lambda: vocabulary_of(tokenizer, runner.info.vocab_size, runner.info.eos_token_ids))
    grammar = compiler.compile(OutputGrammar(Lark({})).answer(SCHEMA))
    run, numbers = Run(build_engine(runner, SHAPE, tokenizer=tokenizer)), itertools.count()
    times: dict[bool, list[float]] = {False: [], True: []}
    meter = Meter()
    metered = MeteredGrammar(grammar, meter)
    for number in range(2 * arguments.rounds + 2):
        constrained = number % 2 == 1
        chosen = requests(tokenizer, metered if constrained else None, numbers, arguments.batch, arguments.tokens)
        taken = seconds_per_step(run, chosen)
        if number >= 2:  # the first of each warms up
            times[constrained].append(taken)
        print(f"{'grammar' if constrained else 'free':8} {taken * 1e3:.2f} ms a step")
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    print(f"batch {arguments.batch}: a step takes {ratio:.3f} times as long with the grammar (medians)")
    print(meter.show((arguments.rounds + 1) * arguments.tokens))


if __name__ == "__main__":
    main()
