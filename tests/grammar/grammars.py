"""Grammars over the byte-level tokenizer: every byte a token, so texts can be tried letter by letter."""

import json
import random
from collections.abc import Mapping
from typing import Any

from openai_kv.grammar.compiler import CompiledGrammar, GrammarCompiler, vocabulary_of
from openai_kv.grammar.lark import Lark
from openai_kv.grammar.schema import SchemaLimits, check_schema
from openai_kv.parsing.grammars import OutputGrammar
from openai_kv.tokenizer import Tokenizer
from tests.tiny_tokenizer import tiny_tokenizer

EOS = 257
LIMITS = SchemaLimits(max_bytes=65536, max_depth=32)


def make_compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(lambda: vocabulary_of(tokenizer, tokenizer.vocab_size, {EOS}))


TOKENIZER = tiny_tokenizer()
COMPILER = make_compiler(TOKENIZER)


def of_schema(schema: dict[str, Any]) -> CompiledGrammar:
    checked = check_schema(schema, LIMITS)
    assert checked.unenforced == ()
    return COMPILER.compile(json_answer(checked.schema))


def json_answer(schema: Mapping[str, Any]) -> str:
    return OutputGrammar(Lark({})).answer(schema)


def accepts(grammar: CompiledGrammar, text: str, tokenizer: Tokenizer = TOKENIZER) -> bool:
    """Whether the model may write `text` and end there."""
    constraint = grammar.start()
    for token_id in [*tokenizer.encode(text, add_special_tokens=False), EOS]:
        if constraint.finished:
            return token_id == EOS and not constraint.failed
        if token_id not in allowed_ids(constraint.mask()):
            return False
        constraint.advance(token_id)
    return constraint.finished and not constraint.failed


def allowed_ids(mask: bytes) -> set[int]:
    bits = int.from_bytes(mask, "little")
    return {index for index in range(bits.bit_length()) if bits >> index & 1}


def walk(grammar: CompiledGrammar, rng: random.Random, max_tokens: int = 400) -> Any:
    """The value of a random output; None if it came to no end."""
    constraint = grammar.start()
    token_ids: list[int] = []
    while not constraint.finished and len(token_ids) < max_tokens:
        token_ids.append(pick(allowed_ids(constraint.mask()), rng))
        constraint.advance(token_ids[-1])
    assert not constraint.failed
    return json.loads(TOKENIZER.decode(token_ids)) if constraint.finished else None


def pick(allowed: set[int], rng: random.Random) -> int:
    """Ends are taken with pleasure, or random outputs would seldom come to one."""
    closing = allowed & {EOS, *TOKENIZER.encode('"}],', add_special_tokens=False)}
    return rng.choice(sorted(closing if closing and rng.random() < 0.5 else allowed))
