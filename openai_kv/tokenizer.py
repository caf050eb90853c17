"""Text to token ids and back: the model's own tokenizer and chat template."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError as JinjaError
from tokenizers.decoders import DecodeStream

from openai_kv.errors import ModelLoadError, TemplateError

MAX_TEMPLATE_OUTPUT = 16 * 2**20
# What jinja itself raises, and what expressions over a client's values can.
TEMPLATE_FAILURES = (JinjaError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """A transformers tokenizer with a `tokenizers` backend. Long texts take milliseconds: call it from a thread."""

    def __init__(self, hf_tokenizer: Any) -> None:
        if not getattr(hf_tokenizer, "is_fast", False):
            raise ModelLoadError(
                f"the tokenizer {type(hf_tokenizer).__name__} has no `tokenizers` backend (tokenizer.json)"
            )
        self._hf = hf_tokenizer
        self.vocab_size: int = len(hf_tokenizer)
        self.special_ids: Mapping[str, int] = {
            token.content: index for index, token in hf_tokenizer.added_tokens_decoder.items() if token.special
        }

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False) -> "Tokenizer":
        """Read the tokenizer of a model folder in the transformers format."""
        from transformers import AutoTokenizer  # noqa: PLC0415  (takes a second; --help must not pay it)

        try:
            return cls(AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code))
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"can't load the tokenizer of {folder}: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._hf.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._hf.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def token_strs(self, token_ids: Sequence[int]) -> list[str]:
        strs: list[str] = self._hf.convert_ids_to_tokens(list(token_ids))
        return strs

    @property
    def default_prompt(self) -> list[int]:
        """What stands for an empty prompt: BOS, else EOS."""
        token = self._hf.bos_token_id if self._hf.bos_token_id is not None else self._hf.eos_token_id
        return [] if token is None else [token]

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of the model's own chat template, rendered in transformers' sandbox; raises TemplateError."""
        if not self._hf.chat_template:
            raise TemplateError("The model has no chat template.", param="messages", code="no_chat_template")
        try:
            text: str = self._hf.apply_chat_template(
                list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                tokenize=False,
                **(template_kwargs or {}),
            )
        except TEMPLATE_FAILURES as error:
            raise TemplateError(f"The chat template refuses these messages: {error}", param="messages") from error
        if len(text) > MAX_TEMPLATE_OUTPUT:
            raise TemplateError("The chat template makes more than 16 MiB of these messages.", param="messages")
        return self.encode(text, add_special_tokens=False)

    def info(self) -> dict[str, Any]:
        """What GET /tokenizer_info tells, but for what belongs to the model."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        values = {name: getattr(self._hf, name, None) for name in names}
        return {"tokenizer_class": type(self._hf).__name__, "vocab_size": self.vocab_size, **values}

    def stream_decoder(
        self, *, skip_special_tokens: bool = True, visible: frozenset[int] = frozenset()
    ) -> "StreamDecoder":
        """`visible` are special tokens that are not skipped."""
        return StreamDecoder(self, skip_special_tokens, visible)

    @property
    def chat_template(self) -> str:
        """Its source, all of them if there are several; empty: the model has none."""
        template = self._hf.chat_template or ""
        return template if isinstance(template, str) else "\n".join(template.values())

    def has_token(self, text: str) -> bool:
        """Whether `text` is one token, special or not."""
        return self.backend.token_to_id(text) is not None

    @property
    def backend(self) -> Any:
        return self._hf.backend_tokenizer


class StreamDecoder:
    """Token by token to text, holding back incomplete UTF-8; `tokenizers`' DecodeStream with the flush it lacks."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, visible: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._visible = visible
        self._stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        self._held: list[int] = []

    def step(self, token_id: int) -> str:
        """Text that became complete with this token."""
        if token_id in self._visible:
            return self.flush() + self._tokenizer.decode([token_id], skip_special_tokens=False)
        piece = self._step(token_id)
        if piece is None:
            self._held.append(token_id)
            return ""
        self._held.clear()
        return piece

    def flush(self) -> str:
        """The tail of an incomplete sequence, as U+FFFD."""
        tail = self._tokenizer.decode(self._held, skip_special_tokens=self._skip) if self._held else ""
        self._held.clear()
        return tail if REPLACEMENT in tail else ""

    def _step(self, token_id: int) -> str | None:
        try:
            return self._stream.step(self._tokenizer.backend, token_id)
        except Exception:  # the library raises a bare Exception when a decoder rewrote what it had already returned
            self._stream = DecodeStream(skip_special_tokens=self._skip)
            return self._stream.step(self._tokenizer.backend, token_id)
