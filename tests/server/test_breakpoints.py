from typing import Any

import pytest

from openai_kv.server.breakpoints import render_marked
from openai_kv.server.fields import Mark, Notes
from openai_kv.server.messages import check_message
from openai_kv.tokenizer import Tokenizer
from tests.tiny_tokenizer import CHAT_TEMPLATE, tiny_tokenizer

MARKED: dict[str, Any] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
TRIMS = CHAT_TEMPLATE.replace("message['content']", "message['content'] | trim")
SHOUTS = CHAT_TEMPLATE.replace("message['content']", "message['content'] | upper | tojson")
TWICE = "{{ messages[0]['content'] }}|{% for message in messages %}{{ message['content'] }}{% endfor %}"
LAST_ONLY = "{{ messages[-1]['content'] }}"
SHORT_ONLY = "{% if messages[0].content | length > 9 %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"


def part(text: str, *, marked: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": text, **(MARKED if marked else {})}


def before(tokenizer: Tokenizer, *contents: object) -> list[str | None]:
    """The text of the tokens before each breakpoint of these messages; the prompt is as without breakpoints."""
    notes = Notes()
    messages = [
        check_message({"role": "user", "content": content}, f"messages[{index}]", notes)
        for index, content in enumerate(contents)
    ]
    body = {"messages": messages}
    marked = render_marked(tokenizer, body, notes.marks, "")
    assert marked.token_ids == render_marked(tokenizer, body, [], "").token_ids
    assert [place.mark for place in marked.places] == notes.marks
    ends = [place.num_tokens for place in marked.places]
    return [
        None if end is None else tokenizer.decode(marked.token_ids[:end], skip_special_tokens=False) for end in ends
    ]


HEAD = "<|im_start|>user\n"


def test_the_end_of_each_marked_part() -> None:
    first, second = [part("ab", marked=True), part("cd"), part("éf", marked=True)], [part("gh", marked=True)]
    whole = f"{HEAD}ab\ncd\néf<|im_end|>\n{HEAD}gh"
    assert before(tiny_tokenizer(), first, "x" * 3, second)[:2] == [f"{HEAD}ab", f"{HEAD}ab\ncd\néf"]
    assert before(tiny_tokenizer(), first, second)[2] == whole


@pytest.mark.parametrize(
    ("template", "content", "expected"),
    [
        (TRIMS, [part(" ab  ", marked=True)], f"{HEAD}ab"),
        (TRIMS, [part("  ", marked=True), part("ab")], HEAD),
        (SHOUTS, [part("ab", marked=True), part("cd")], f'{HEAD}"AB'),
        (TWICE, [part("ab", marked=True), part("cd")], "ab"),
    ],
)
def test_whatever_the_template_does_to_the_text(template: str, content: object, expected: str) -> None:
    assert before(tiny_tokenizer(template), content) == [expected]


def test_a_place_that_the_template_leaves_out_is_none() -> None:
    assert before(tiny_tokenizer(LAST_ONLY), [part("ab", marked=True)], [part("cd", marked=True)]) == [None, "cd"]
    assert before(tiny_tokenizer(SHORT_ONLY), [part("ab", marked=True)]) == [None]


def test_where_the_marks_are() -> None:
    notes = Notes()
    content = [part("ab"), {**part("c"), "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "2m"}}]
    message = check_message({"role": "user", "content": content}, "messages[12]", notes)
    assert message["content"] == "ab\nc"
    assert notes.marks == [Mark("messages[12].content[1]", 12, 4, 120)]


@pytest.mark.model
def test_a_merging_tokenizer(default_model: object) -> None:
    tokenizer = Tokenizer.load(default_model)  # type: ignore[arg-type]
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert before(tokenizer, [part("Hello there, wor", marked=True), part("ld.  ", marked=True)]) == [
        f"{system}{HEAD}Hello there, wor",
        f"{system}{HEAD}Hello there, wor\nld.  ",
    ]
