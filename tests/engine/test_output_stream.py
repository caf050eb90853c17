import pytest

from openai_kv.engine.output_stream import OutputStream
from openai_kv.outputs import RequestOutput
from openai_kv.request import FinishReason


def output(text: str, token: int, finish_reason: FinishReason | None = None) -> RequestOutput:
    return RequestOutput("r", text, (token,), 1, token, 0, 0, "miss", finish_reason)


async def test_outputs_merge_while_the_reader_is_busy() -> None:
    stream = OutputStream()
    stream.put(output("a", 1))
    stream.put(output("b", 2))
    merged = await stream.get()
    assert (merged.text, merged.token_ids, merged.num_output_tokens) == ("ab", (1, 2), 2)
    assert not stream.finished
    stream.put(output("c", 3, FinishReason.STOP))
    assert (await stream.get()).text == "c"
    assert stream.finished


async def test_an_error_comes_after_what_was_put_before_it() -> None:
    stream = OutputStream()
    stream.put(output("a", 1))
    stream.fail(ValueError("first"))
    stream.fail(ValueError("second"))
    assert (await stream.get()).text == "a"
    with pytest.raises(ValueError, match="first"):
        await stream.get()


async def test_the_end_of_a_failed_request_does_not_hide_its_error() -> None:
    stream = OutputStream()
    stream.put(output("a", 1))
    stream.fail(ValueError("cut"))
    stream.put(output("", 1, FinishReason.ABORT))
    assert (await stream.get()).finish_reason is None
    assert not stream.finished
    with pytest.raises(ValueError, match="cut"):
        await stream.get()
