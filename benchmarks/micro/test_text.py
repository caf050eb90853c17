"""Text: the detokenizer at 64 streams, and a conversation of 40 turns through template and tokenizer."""

from itertools import count
from pathlib import Path

from pytest_benchmark.fixture import BenchmarkFixture

from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.request import Request, RequestInfo, SamplingParams
from openai_kv.tokenizer import Tokenizer
from tests.tiny_tokenizer import CountingTokenizer

STREAMS = 64
TOKENS = 32
CACHE_BYTES = 16 * 2**20
SENTENCE = "The keys and values of what was said before are kept, so that nobody has to compute them again. "
ROLES = ("user", "assistant")


def conversation() -> list[dict[str, str]]:
    return [{"role": ROLES[turn % 2], "content": f"{turn}. {10 * SENTENCE}"} for turn in range(40)]


def test_detokenizer(benchmark: BenchmarkFixture, tokenizer: Tokenizer) -> None:
    """32 tokens each of 64 requests with a stop string, taken token by token."""
    ids = tokenizer.encode(100 * SENTENCE, add_special_tokens=False)[:TOKENS]
    params = SamplingParams(TOKENS, stop=("\n\n",))

    def decode() -> list[str]:
        detokenizer = Detokenizer(tokenizer)
        requests = [Request(RequestInfo(str(number), 1), (0,), params, 0.0) for number in range(STREAMS)]
        for request in requests:
            detokenizer.add(request)
        return [piece for token_id in ids for piece in step(detokenizer, requests, token_id)]

    pieces = benchmark(decode)
    assert "".join(pieces[::STREAMS]).startswith(tokenizer.decode(ids)[:20])


def step(detokenizer: Detokenizer, requests: list[Request], token_id: int) -> list[str]:
    for request in requests:
        detokenizer.append(request, token_id)
    return [detokenizer.take(request).text for request in requests]


def test_chat_template(benchmark: BenchmarkFixture, tokenizer: Tokenizer) -> None:
    text = benchmark(tokenizer.chat_text, conversation())
    benchmark.extra_info["characters"] = len(text)
    assert SENTENCE in text


def test_tokenization_of_the_next_turn(benchmark: BenchmarkFixture, model: Path, tiny: bool) -> None:
    """All but the last two of the 40 turns were there in the turn before."""
    tokenizer = CountingTokenizer() if tiny else Tokenizer.load(model, cache_bytes=CACHE_BYTES)
    texts = [tokenizer.chat_text(conversation()[:turns]) for turns in (38, 40)]
    sent = iter(map(str, count()))

    def earlier_turn() -> tuple[tuple[str, str], dict[str, str]]:
        namespace = next(sent)
        tokenizer.encode_chat(texts[0], namespace)
        return (texts[1], namespace), {}

    ids = benchmark.pedantic(tokenizer.encode_chat, setup=earlier_turn, rounds=20)
    benchmark.extra_info["tokens"] = len(ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == texts[1]


def test_tokenization(benchmark: BenchmarkFixture, tokenizer: Tokenizer) -> None:
    text = tokenizer.chat_text(conversation())
    ids = benchmark(tokenizer.encode, text, add_special_tokens=False)
    benchmark.extra_info["tokens"] = len(ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
