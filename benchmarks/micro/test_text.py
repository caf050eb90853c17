"""Text: the detokenizer at 64 streams, and a conversation of 40 turns through template and tokenizer."""

from pytest_benchmark.fixture import BenchmarkFixture

from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.request import Request, RequestInfo, SamplingParams
from openai_kv.tokenizer import Tokenizer

STREAMS = 64
TOKENS = 32
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


def test_tokenization(benchmark: BenchmarkFixture, tokenizer: Tokenizer) -> None:
    text = tokenizer.chat_text(conversation())
    ids = benchmark(tokenizer.encode, text, add_special_tokens=False)
    benchmark.extra_info["tokens"] = len(ids)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
