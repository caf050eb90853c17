"""Which grammar library: compile time, mask time per token and coverage of the JSON-Schema test suite, side by side.

`Served` is llguidance as the server uses it: refused is what can't be enforced, what a schema leaves open has bounds.

`pip download --no-binary jsonschema --no-deps jsonschema==4.26.0` has the suite in `json/tests/draft2020-12`:
`python -m benchmarks.grammar SUITE MODEL_FOLDER` (MODEL_FOLDER: whose tokenizer; also needs `pip install xgrammar`).
"""

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import llguidance
import llguidance.hf
import llguidance.numpy
import xgrammar
from transformers import AutoTokenizer

from openai_kv.grammar.compiler import GrammarCompiler, vocabulary_of
from openai_kv.grammar.lark import Lark
from openai_kv.grammar.schema import SchemaError, SchemaLimits, check_schema
from openai_kv.parsing.grammars import OutputGrammar
from openai_kv.tokenizer import Tokenizer

LIMITS = SchemaLimits(65536, 32)


class Matcher(Protocol):
    def accepts(self, token_ids: list[int], fill_seconds: list[float]) -> bool: ...


@dataclass(frozen=True)
class Case:
    """A schema of the suite with its valid and invalid instances."""

    keyword: str
    schema: Any
    instances: list[tuple[Any, bool]]


@dataclass
class Tally:
    compile_seconds: list[float] = field(default_factory=list)
    fill_seconds: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    inexact: dict[str, Counter[str]] = field(default_factory=dict)

    def print(self, name: str) -> None:
        compiled, fills = sorted(self.compile_seconds), sorted(self.fill_seconds)
        print(f"{name}: {dict(self.outcomes)}")
        print(f"  compile ms: median {statistics.median(compiled) * 1e3:.2f}, max {compiled[-1] * 1e3:.1f}")
        percentiles = (fills[len(fills) * share // 1000] * 1e6 for share in (500, 900, 990))
        shown = ", ".join(f"p{name} {value:.0f}" for name, value in zip((50, 90, 99), percentiles, strict=True))
        print(f"  mask us a token: {shown}, max {fills[-1] * 1e6:.0f}")
        for keyword, outcomes in self.inexact.items():
            print(f"    {keyword}: {dict(outcomes)}")


class LLGuidance:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer)
        self._mask = llguidance.numpy.allocate_token_bitmask(1, self._tokenizer.vocab_size)

    def compile(self, schema: str) -> Matcher:
        grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
        self._matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())
        return self

    def accepts(self, token_ids: list[int], fill_seconds: list[float]) -> bool:
        matcher = self._matcher.deep_copy()
        for token_id in token_ids:
            start = time.perf_counter()
            llguidance.numpy.fill_next_token_bitmask(matcher, self._mask)
            fill_seconds.append(time.perf_counter() - start)
            if matcher.is_error() or not matcher.try_consume_tokens([token_id]):
                return False
        return matcher.is_accepting()


class Served:
    """Schemas as requests with `strict` have them."""

    def __init__(self, tokenizer: Any) -> None:
        ends = {tokenizer.eos_token_id}
        self._end = tokenizer.eos_token_id
        self._compiler = GrammarCompiler(lambda: vocabulary_of(Tokenizer(tokenizer), len(tokenizer), ends))

    def compile(self, schema: str) -> Matcher:
        given = json.loads(schema)
        checked = check_schema(given if isinstance(given, dict) else {"not": {}}, LIMITS)
        if checked.unenforced:
            raise SchemaError("can't be enforced", checked.unenforced[0])
        self._grammar = self._compiler.compile(OutputGrammar(Lark({})).answer(checked.schema))
        return self

    def accepts(self, token_ids: list[int], fill_seconds: list[float]) -> bool:
        constraint = self._grammar.start()
        for token_id in [*token_ids, self._end]:
            if constraint.finished:
                return token_id == self._end and not constraint.failed
            start = time.perf_counter()
            mask = constraint.mask()
            fill_seconds.append(time.perf_counter() - start)
            if not mask[token_id // 8] >> token_id % 8 & 1:
                return False
            constraint.advance(token_id)
        return constraint.finished and not constraint.failed


class XGrammar:
    def __init__(self, tokenizer: Any) -> None:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, schema: str) -> Matcher:
        self._grammar = self._compiler.compile_json_schema(schema, strict_mode=False)
        return self

    def accepts(self, token_ids: list[int], fill_seconds: list[float]) -> bool:
        matcher = xgrammar.GrammarMatcher(self._grammar, terminate_without_stop_token=True)
        for token_id in token_ids:
            if matcher.is_terminated():
                return False
            start = time.perf_counter()
            matcher.fill_next_token_bitmask(self._mask)
            fill_seconds.append(time.perf_counter() - start)
            if not matcher.accept_token(token_id):
                return False
        return bool(matcher.is_terminated() or matcher.is_completed())


def cases(suite: Path) -> Iterator[Case]:
    for path in [*sorted(suite.glob("*.json")), *sorted(suite.glob("optional/format/*.json"))]:
        for group in json.loads(path.read_text(encoding="utf-8")):
            instances = [(test["data"], test["valid"]) for test in group["tests"]]
            yield Case(path.stem, group["schema"], instances)


def ordered(value: Any, schema: Any) -> Any:
    """Keys in the order of `properties`, as both libraries want them."""
    if isinstance(value, list):
        return [ordered(item, schema.get("items") if isinstance(schema, dict) else None) for item in value]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    names = [*(name for name in properties if name in value), *(name for name in value if name not in properties)]
    return {name: ordered(value[name], properties.get(name)) for name in names}


def outcome(case: Case, library: Any, encode: Callable[[str], list[int]], tally: Tally) -> str:
    start = time.perf_counter()
    try:
        matcher = library.compile(json.dumps(case.schema))
    except (ValueError, RuntimeError, SchemaError):
        return "refused"
    tally.compile_seconds.append(time.perf_counter() - start)
    found = set()
    for value, valid in case.instances:
        text = json.dumps(ordered(value, case.schema), ensure_ascii=False)
        if matcher.accepts(encode(text), tally.fill_seconds) != valid:
            found.add("rejects valid" if valid else "accepts invalid")
    return " and ".join(sorted(found)) or "exact"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("model", type=Path)
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    for library in (LLGuidance(tokenizer), Served(tokenizer), XGrammar(tokenizer)):
        tally = Tally()
        for case in cases(arguments.suite):
            result = outcome(case, library, lambda text: tokenizer.encode(text, add_special_tokens=False), tally)
            tally.outcomes[result] += 1
            tally.inexact.setdefault(case.keyword, Counter())[result] += 1
        tally.print(type(library).__name__)


if __name__ == "__main__":
    main()
