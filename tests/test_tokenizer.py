import pytest
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerFast

from openai_kv import tokenizer as tokenizer_module
from openai_kv.errors import ModelLoadError, TemplateError
from openai_kv.tokenizer import Tokenizer
from tests.tiny_tokenizer import tiny_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]


def test_text_to_ids_and_back() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("héllo<|im_end|>")
    assert tokenizer.decode(ids) == "héllo"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "héllo<|im_end|>"
    assert tokenizer.token_strs(ids[:1]) == ["h"]
    assert tokenizer.default_prompt == tokenizer.encode("<|endoftext|>")


def test_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    text = tokenizer.decode(tokenizer.render_chat(MESSAGES), skip_special_tokens=False)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_no_chat_template() -> None:
    with pytest.raises(TemplateError) as caught:
        tiny_tokenizer(chat_template=None).render_chat(MESSAGES)
    assert (caught.value.code, caught.value.param) == ("no_chat_template", "messages")


def test_the_templates_own_refusal_is_told() -> None:
    tokenizer = tiny_tokenizer("{{ raise_exception('no systems here') }}")
    with pytest.raises(TemplateError, match="no systems here") as caught:
        tokenizer.render_chat(MESSAGES)
    assert caught.value.code == "template_error"


def test_templates_run_sandboxed() -> None:
    tokenizer = tiny_tokenizer("{{ messages.__class__.__mro__ }}")
    with pytest.raises(TemplateError):
        tokenizer.render_chat(MESSAGES)


@pytest.mark.parametrize("expression", ["1 // n", "range(10 ** 9)", "deep | tojson"])
def test_whatever_a_template_does_with_a_clients_values_is_a_refusal(expression: str) -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(TemplateError):
        tiny_tokenizer("{{ " + expression + " }}").render_chat(MESSAGES, template_kwargs={"n": 0, "deep": deep})


def test_output_of_a_template_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_TEMPLATE_OUTPUT", 20)
    with pytest.raises(TemplateError, match="16 MiB"):
        tiny_tokenizer().render_chat(MESSAGES)


def test_a_tokenizer_without_a_backend_is_refused() -> None:
    class Slow(BertTokenizer):
        is_fast = False

        def __init__(self) -> None:
            """Only what the check looks at."""

    with pytest.raises(ModelLoadError, match="Slow"):
        Tokenizer(Slow())


def test_a_template_that_never_ends_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_TEMPLATE_SECONDS", 0.05)
    nested = "{% for a in range(90000) %}" * 3 + "{% set b = a %}" + "{% endfor %}" * 3
    with pytest.raises(TemplateError, match="too long") as caught:
        tiny_tokenizer(nested).render_chat(MESSAGES)
    assert (caught.value.code, caught.value.param) == ("template_error", "messages")


def test_a_template_that_asks_for_too_much_memory_is_refused() -> None:
    with pytest.raises(TemplateError, match="refuses"):
        tiny_tokenizer("{{ 'x' * 10 ** 15 }}").render_chat(MESSAGES)


@pytest.mark.parametrize("trim_offsets", [False, True])
def test_tokens_wholly_before_an_end(trim_offsets: bool) -> None:
    """Some tokenizers leave the white space of a token out of its span."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*alphabet, ".Ċ", ".ĊĊ", "ĠĠ", "Ġa"])}
    backend = BackendTokenizer(models.BPE(vocab=vocab, merges=[(".", "Ċ"), (".Ċ", "Ċ"), ("Ġ", "Ġ"), ("Ġ", "a")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer = Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend))
    text = "x.\n\n    é a"
    ids, counts = tokenizer.encode_to(text, range(len(text) + 1), "")
    assert tokenizer.token_strs(ids) == ["x", ".ĊĊ", "ĠĠ", "ĠĠ", "Ã", "©", "Ġa"]
    assert counts == [0, 1, 1, 1, 2, 2, 3, 3, 4, 6, 6, 7]
