"""Grammars compiled for one vocabulary, the latest ones kept."""

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from openai_kv.grammar.constraint import MatcherConstraint, Submit
from openai_kv.grammar.digits import DigitLimit
from openai_kv.grammar.schema import SchemaError
from openai_kv.tokenizer import Tokenizer

Vocabulary = LLTokenizer
KEPT = 256
MASK_THREADS = 4
LIMITS = LLParserLimits(  # a row has 4 items for each optional property that may come next
    max_grammar_size=100_000, max_lexer_states=100_000, max_items_in_row=50_000, verbose_errors=False
)


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """What `SamplingParams.grammar` is; any number of outputs may be held to it."""

    matcher: LLMatcher
    submit: Submit
    limit: DigitLimit

    def start(self) -> MatcherConstraint:
        return MatcherConstraint(self.matcher.deep_copy(), self.submit, self.limit)


class GrammarCompiler:
    """Compiling takes milliseconds, the first one a second more: call it from a worker thread.

    `get_vocabulary` is called with the first grammar.
    """

    def __init__(self, get_vocabulary: Callable[[], Vocabulary]) -> None:
        self._get_vocabulary = get_vocabulary
        self._pool = ThreadPoolExecutor(MASK_THREADS, "openai-kv-grammar")
        self.compile = lru_cache(KEPT)(self._compile)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        return self._get_vocabulary()

    @cached_property
    def _limit(self) -> DigitLimit:
        return DigitLimit.of(self._vocabulary.decode_bytes([index]) for index in range(self._vocabulary.vocab_size))

    def _compile(self, grammar: str) -> CompiledGrammar:
        """`grammar` in llguidance's Lark dialect. Raises SchemaError if it is contradictory or beyond the limits."""
        text = LLMatcher.grammar_from_lark(grammar)
        matcher = LLMatcher(self._vocabulary, text, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise SchemaError(matcher.get_error())
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise SchemaError("nothing can be written that satisfies it")
        return CompiledGrammar(matcher, self._pool.submit, self._limit)


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Collection[int]) -> Vocabulary:
    """`vocab_size`: of the model, which may have more rows than the tokenizer has tokens, or fewer."""
    backend = type(tokenizer.backend).from_str(tokenizer.backend.to_str())
    backend.no_padding()
    backend.no_truncation()
    size = max(vocab_size, tokenizer.vocab_size, *(token_id + 1 for token_id in eos_token_ids))
    return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=sorted(eos_token_ids))
