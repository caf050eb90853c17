"""A byte-level tokenizer without merges: every byte is a token, so any text and any split of it can be made."""

from collections.abc import Sequence

from tokenizers import Tokenizer as BackendTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from openai_kv.tokenizer import Tokenizer

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def tiny_tokenizer(chat_template: str | None = CHAT_TEMPLATE, specials: Sequence[str] = ()) -> Tokenizer:
    """Ids 0..255 are the bytes in the order of the byte-level alphabet, then the special tokens, `specials` last."""
    return byte_level_tokenizer(sorted(pre_tokenizers.ByteLevel.alphabet()), chat_template, specials)


def byte_level_tokenizer(
    vocabulary: Sequence[str], chat_template: str | None = None, specials: Sequence[str] = ()
) -> Tokenizer:
    """Ids as in `vocabulary`, which is written in the byte-level alphabet, then the special tokens, `specials` last."""
    return Tokenizer(byte_level(vocabulary, chat_template, specials))


class CountingTokenizer(Tokenizer):
    """Bytes as tokens, with a cache for chats; `texts` are those it really had to tokenize."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
        super().__init__(byte_level(vocabulary, CHAT_TEMPLATE), cache_bytes=1 << 20)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self.texts.append(text)
        return super().encode(text, add_special_tokens=add_special_tokens)

    def taken(self) -> str:
        """What was tokenized since the last call."""
        text = "".join(self.texts)
        self.texts.clear()
        return text


def byte_level(
    vocabulary: Sequence[str], chat_template: str | None = None, specials: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    backend = BackendTokenizer(models.BPE(vocab={token: index for index, token in enumerate(vocabulary)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*SPECIALS, *specials])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<|endoftext|>", eos_token="<|im_end|>")
    fast.chat_template = chat_template
    return fast
