"""Outputs held to a grammar through the whole engine: batched with others, preempted, aborted, ended early."""

import json
import random

import jsonschema

from openai_kv.request import FinishReason
from tests.grammar.grammars import EOS, TOKENIZER, of_schema
from tests.harness import Run, Shape, build_engine, fake_runner, make_request

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^[0-9]{12}$"}, "on": {"type": "boolean"}},
    "required": ["id", "on"],
    "additionalProperties": False,
}
GRAMMAR = of_schema(SCHEMA)


def make(shape: Shape | None = None) -> Run:
    shape = shape or Shape(num_blocks=128, max_model_len=256)
    return Run(build_engine(fake_runner(shape, vocab_size=250, eos_token_ids=frozenset({EOS})), shape))


def value_of(tokens: list[int]) -> object:
    return json.loads(TOKENIZER.decode(tokens))


def test_constrained_and_free_outputs_in_one_batch() -> None:
    run = make()
    alone = make().generate(make_request([1, 2], 150))
    held = [make_request([number, 3], 200, grammar=GRAMMAR) for number in range(3)]
    free = make_request([1, 2], 150)
    run.add(free, *held)
    run.until_idle()
    assert [run.tokens(free)] == alone
    for request in held:
        jsonschema.validate(value_of(run.tokens(request)), SCHEMA)
        assert (run.finish_reason(request), run.last(request).stop_reason) == (FinishReason.STOP, None)


def test_the_end_of_the_grammar_is_the_end_without_an_end_of_sequence_token() -> None:
    run = make()
    request = make_request([1], 200, grammar=GRAMMAR, ignore_eos=True, min_tokens=200)
    (tokens,) = run.generate(request)
    assert TOKENIZER.decode(tokens).endswith("}")
    assert run.finish_reason(request) is FinishReason.STOP


def test_preemption_loses_nothing() -> None:
    shape = Shape(num_blocks=24, block_size=4, max_model_len=90)
    run = make(shape)
    rng = random.Random(1)
    prompts = [[rng.randrange(200) for _ in range(5)] for _ in range(6)]
    requests = [make_request(prompt, 80, grammar=GRAMMAR) for prompt in prompts]
    tokens = run.generate(*requests)
    assert any(request.num_preemptions for request in requests)
    for request, prompt, output in zip(requests, prompts, tokens, strict=True):
        assert make(shape).generate(make_request(prompt, 80, grammar=GRAMMAR)) == [output]
        if run.finish_reason(request) is FinishReason.STOP:
            jsonschema.validate(value_of(output), SCHEMA)


def test_a_stop_string_and_the_maximum_may_cut_it() -> None:
    run = make()
    stopped = make_request([4], 200, grammar=GRAMMAR, stop=('"id"',))
    cut = make_request([4], 3, grammar=GRAMMAR)
    run.generate(stopped, cut)
    assert run.last(stopped).stop_reason == '"id"'
    assert run.finish_reason(cut) is FinishReason.LENGTH


def test_an_aborted_output_leaves_nothing_behind() -> None:
    run = make()
    request = make_request([1], 200, grammar=GRAMMAR)
    run.add(request)
    for _ in range(3):
        run.step()
    run.take(run.engine.abort(request.request_id))
    run.until_idle()
    assert run.finish_reason(request) is FinishReason.ABORT


class Broken:
    """A grammar that becomes too complex at the second token."""

    def start(self) -> "Broken":
        return Broken()

    def __init__(self) -> None:
        self.finished = self.failed = False
        self.count = 0

    def mask(self) -> bytes:
        return b"\xff" * 40

    def advance(self, token_id: int) -> None:
        self.count += 1
        self.finished = self.failed = self.count == 2


def test_a_grammar_that_fails_ends_its_request_only() -> None:
    run = make()
    broken, other = make_request([1], 50, grammar=Broken()), make_request([2], 5)
    run.generate(broken, other)
    assert run.finish_reason(broken) is FinishReason.ERROR
    assert run.finish_reason(other) is FinishReason.LENGTH
