"""Schemas of the JSON-Schema test suite asked of a running server at temperature 1: who ends by stop, and is it valid.

`python -m benchmarks.schemas SUITE [--url http://127.0.0.1:8000]`; where SUITE comes from: `benchmarks/grammar.py`.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import jsonschema

from openai_kv.grammar.schema import SchemaError, SchemaLimits, check_schema

PROMPT = "Reply with a short JSON value that this schema allows, and nothing else: "
EXAMPLES = (  # what is asked, in the words that a small model understands best
    ({"properties": {"name": {"type": "string"}, "age": {"minimum": 0}}}, {"name": "Ann", "age": 31}),
    ({"items": {"type": "boolean"}}, [True, False]),
    ({"maximum": 9}, 4),
)
LIMITS = SchemaLimits(65536, 32)
VALIDATOR = jsonschema.Draft202012Validator


@dataclass(frozen=True)
class Answer:
    schema: Mapping[str, Any]
    status: int
    text: str = ""
    finish_reason: str = ""
    num_tokens: int = 0

    @property
    def is_valid(self) -> bool:
        try:
            jsonschema.validate(json.loads(self.text), self.schema, VALIDATOR, format_checker=VALIDATOR.FORMAT_CHECKER)
        except (ValueError, jsonschema.ValidationError):
            return False
        return True


def enforceable(suite: Path) -> Iterator[Mapping[str, Any]]:
    """The suite's schemas, once each, with nothing in them that the contract leaves to the model."""
    seen = set()
    for path in [*sorted(suite.glob("*.json")), *sorted(suite.glob("optional/format/*.json"))]:
        for schema in (group["schema"] for group in json.loads(path.read_text(encoding="utf-8"))):
            text = json.dumps(schema)
            if text not in seen and is_enforceable(schema):
                seen.add(text)
                yield schema


def is_enforceable(schema: Any) -> bool:
    try:
        return isinstance(schema, dict) and not check_schema(schema, LIMITS).unenforced
    except SchemaError:
        return False


def conversation(schema: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for example, value in EXAMPLES:
        yield {"role": "user", "content": PROMPT + json.dumps(example)}
        yield {"role": "assistant", "content": json.dumps(value)}
    yield {"role": "user", "content": PROMPT + json.dumps(schema)}


def chosen(schemas: list[Mapping[str, Any]], count: int, seeds: list[int] | None) -> dict[int, Mapping[str, Any]]:
    """By seed: `count` of them, evenly, or of these only those whose seeds are given."""
    count = count or len(schemas)
    places = range(count) if seeds is None else seeds
    return {seed: schemas[seed * len(schemas) // count] for seed in places}


async def ask(client: httpx.AsyncClient, schema: Mapping[str, Any], seed: int, max_tokens: int) -> Answer:
    wanted = {"type": "json_schema", "json_schema": {"name": "example", "schema": schema, "strict": True}}
    sampling = {"temperature": 1, "seed": seed, **({"max_tokens": max_tokens} if max_tokens else {})}
    model = (await client.get("/v1/models")).json()["data"][0]["id"]
    body = {"model": model, "messages": list(conversation(schema)), **sampling}
    response = await client.post("/v1/chat/completions", json={**body, "response_format": wanted})
    if response.status_code != 200:
        return Answer(schema, response.status_code, response.text)
    choice = response.json()["choices"][0]
    num_tokens = response.json()["usage"]["completion_tokens"]
    return Answer(schema, 200, choice["message"]["content"], choice["finish_reason"], num_tokens)


async def ask_all(url: str, schemas: dict[int, Mapping[str, Any]], max_tokens: int, at_once: int) -> list[Answer]:
    """`schemas` by their seeds."""
    gate = asyncio.Semaphore(at_once)

    async def one(client: httpx.AsyncClient, seed: int, schema: Mapping[str, Any]) -> Answer:
        async with gate:
            return await ask(client, schema, seed, max_tokens)

    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        return await asyncio.gather(*(one(client, seed, schema) for seed, schema in schemas.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--max-tokens", type=int, default=0, help="0: none given, so the rest of the context")
    parser.add_argument("--count", type=int, default=50, help="this many, evenly over the suite; 0: all")
    parser.add_argument("--seeds", type=int, nargs="*", help="only these of them: a schema's seed is its place")
    parser.add_argument("--at-once", type=int, default=8)
    arguments = parser.parse_args()
    schemas = chosen(list(enforceable(arguments.suite)), arguments.count, arguments.seeds)
    answers = asyncio.run(ask_all(arguments.url, schemas, arguments.max_tokens, arguments.at_once))
    accepted = [answer for answer in answers if answer.status == 200]
    stopped = [answer for answer in accepted if answer.finish_reason == "stop"]
    tokens = [answer.num_tokens for answer in accepted]
    num_valid = sum(answer.is_valid for answer in stopped)
    print(f"of {len(schemas)} schemas: {len(accepted)} answers, {len(stopped)} end by stop, {num_valid} of those valid")
    print(f"{len(answers) - len(accepted)} without an answer")
    print(f"tokens an answer: median {median(tokens)}, most {max(tokens)}")
    for seed, answer in zip(schemas, answers, strict=True):
        if answer.status != 200 or answer.finish_reason != "stop" or not answer.is_valid:
            print(seed, answer.status, answer.finish_reason, json.dumps(answer.schema)[:160], "->", answer.text[:160])


if __name__ == "__main__":
    main()
