"""Text to token ids and back: the model's own tokenizer and chat template."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import add
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError as JinjaError
from tokenizers.decoders import DecodeStream

from openai_kv.errors import ModelLoadError, TemplateError
from openai_kv.piece_cache import PieceCache, PieceEncoder
from openai_kv.text_cuts import find_cuts
from openai_kv.time_limit import TimeUp, time_limit
from openai_kv.token_bytes import TokenBytes

MAX_TEMPLATE_OUTPUT = 16 * 2**20
MAX_TEMPLATE_SECONDS = 1.0
TEMPLATE_FILE = "<template>"  # what jinja says its code is from
# What jinja itself raises, and what expressions over a client's values can.
TEMPLATE_FAILURES = (
    JinjaError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """A transformers tokenizer with a `tokenizers` backend. Long texts take milliseconds: call it from a thread.

    `cache_bytes`: for the ids of earlier texts of `encode_chat`.
    """

    def __init__(self, hf_tokenizer: Any, *, cache_bytes: int = 0) -> None:
        if not getattr(hf_tokenizer, "is_fast", False):
            raise ModelLoadError(
                f"the tokenizer {type(hf_tokenizer).__name__} has no `tokenizers` backend (tokenizer.json)"
            )
        self._hf = hf_tokenizer
        self._token_bytes = TokenBytes(hf_tokenizer)
        self.vocab_size: int = len(hf_tokenizer)
        self.special_ids: Mapping[str, int] = {
            token.content: index for index, token in hf_tokenizer.added_tokens_decoder.items() if token.special
        }
        cuts = find_cuts(hf_tokenizer, self._encode_text, self.chat_template) if cache_bytes else None
        self._pieces = None if cuts is None else PieceEncoder(self._encode_text, cuts, PieceCache(cache_bytes))

    @classmethod
    def load(cls, folder: Path, *, trust_remote_code: bool = False, cache_bytes: int = 0) -> "Tokenizer":
        """Read the tokenizer of a model folder in the transformers format."""
        from transformers import AutoTokenizer  # noqa: PLC0415  (takes a second; --help must not pay it)

        try:
            hf_tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"can't load the tokenizer of {folder}: {error}") from error
        return cls(hf_tokenizer, cache_bytes=cache_bytes)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids: list[int] = self._hf.encode(text, add_special_tokens=add_special_tokens)
        return ids

    def encode_chat(self, text: str, namespace: str) -> list[int]:
        """The same ids as without special tokens; of what came before in this namespace no work is done again."""
        return self._encode_text(text) if self._pieces is None else self._pieces.encode(namespace, text)

    def _encode_text(self, text: str) -> list[int]:
        return self.encode(text, add_special_tokens=False)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        text: str = self._hf.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text

    def token_strs(self, token_ids: Sequence[int]) -> list[str]:
        strs: list[str] = self._hf.convert_ids_to_tokens(list(token_ids))
        return strs

    def token_bytes(self, token_id: int) -> bytes | None:
        """What the token adds inside a text; None for an id that the tokenizer doesn't know."""
        return self._token_bytes.of(token_id)

    def token_starts(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """How many characters of `text` come before each token of its encoding."""
        options = {"return_offsets_mapping": True, "return_special_tokens_mask": True}
        encoding = self._hf(text, add_special_tokens=add_special_tokens, **options)
        starts, end = list[int](), 0
        for (first, last), added in zip(encoding["offset_mapping"], encoding["special_tokens_mask"], strict=True):
            starts.append(end if added else min(first, end))
            end = max(end, last)
        return starts

    @property
    def default_prompt(self) -> list[int]:
        """What stands for an empty prompt: BOS, else EOS."""
        token = self._hf.bos_token_id if self._hf.bos_token_id is not None else self._hf.eos_token_id
        return [] if token is None else [token]

    def chat_text(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of the model's own chat template, rendered in transformers' sandbox; raises TemplateError.

        It may take a second of work and make 16 MiB of text.
        """
        if not self._hf.chat_template:
            raise TemplateError("The model has no chat template.", param="messages", code="no_chat_template")
        try:
            with time_limit(MAX_TEMPLATE_SECONDS, TEMPLATE_FILE):
                text: str = self._hf.apply_chat_template(
                    list(messages),
                    tools=list(tools) if tools else None,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    tokenize=False,
                    **(template_kwargs or {}),
                )
        except TimeUp:
            raise TemplateError("The chat template takes too long over these messages.", param="messages") from None
        except TEMPLATE_FAILURES as error:
            raise TemplateError(f"The chat template refuses these messages: {error}", param="messages") from error
        if len(text) > MAX_TEMPLATE_OUTPUT:
            raise TemplateError("The chat template makes more than 16 MiB of these messages.", param="messages")
        return text

    def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        """Token ids of `chat_text`."""
        return self.encode(self.chat_text(messages, **options), add_special_tokens=False)

    def encode_to(self, text: str, ends: Sequence[int], namespace: str) -> tuple[list[int], list[int]]:
        """As `encode_chat`, and for each of `ends`, in characters, how many leading tokens lie wholly before it."""
        if self._pieces is None:
            return self._encode_to(text, ends)
        spans = [self._pieces.piece_at(text, end) for end in ends]
        before = [len(self.encode_chat(text[: span.start], namespace)) for span in spans]
        inside = [self._encode_to(text[span], [end - span.start])[1][0] for span, end in zip(spans, ends, strict=True)]
        return self.encode_chat(text, namespace), list(map(add, before, inside))

    def _encode_to(self, text: str, ends: Sequence[int]) -> tuple[list[int], list[int]]:
        encoding = self._hf(text, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[int] = encoding["input_ids"]
        spans: list[tuple[int, int]] = encoding["offset_mapping"]
        counts = [bisect_right(spans, end, key=lambda span: span[1]) for end in ends]
        for index, end in enumerate(ends):
            while counts[index] and self._end(text, ids[counts[index] - 1], spans[counts[index] - 1]) > end:
                counts[index] -= 1
        return ids, counts

    def _end(self, text: str, token_id: int, span: tuple[int, int]) -> int:
        """Where the text of a token ends; some tokenizers leave white space at its end out of its span."""
        piece = self.decode([token_id], skip_special_tokens=False)
        space = piece[len(piece.rstrip()) :]
        trimmed = len(space) < len(piece) and not text[span[0] : span[1]].endswith(space)
        return span[1] + (len(space) if trimmed else 0)

    def info(self) -> dict[str, Any]:
        """What GET /tokenizer_info tells, but for what belongs to the model."""
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
        values = {name: getattr(self._hf, name, None) for name in names}
        return {"tokenizer_class": type(self._hf).__name__, "vocab_size": self.vocab_size, **values}

    def stream_decoder(
        self, *, skip_special_tokens: bool = True, visible: frozenset[int] = frozenset()
    ) -> "StreamDecoder":
        """`visible` are special tokens that are never skipped."""
        special = frozenset(self.special_ids.values()) if skip_special_tokens else frozenset()
        return StreamDecoder(self, special - visible)

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
    """Token by token to text, holding back incomplete UTF-8; `tokenizers`' DecodeStream with the flush it lacks.

    `skipped` tokens are as if they had not come.
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int] = frozenset()) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held: list[int] = []

    @property
    def holds(self) -> bool:
        """Whether tokens came that gave no text yet."""
        return bool(self._held)

    @property
    def num_held(self) -> int:
        """How many whole characters are held back before the incomplete one, which has four bytes at most."""
        return len(self._decode(self._held[:4]).rstrip(REPLACEMENT)) if self._held else 0

    def step(self, token_id: int) -> str:
        """Text that became complete with this token."""
        if token_id in self._skipped:
            return ""
        piece = self._step(token_id)
        if piece is None:
            self._held.append(token_id)
            return ""
        self._held.clear()
        return piece

    def flush(self) -> str:
        """The tail of an incomplete sequence, as U+FFFD."""
        tail = self._decode(self._held) if self._held else ""
        self._held.clear()
        return tail if REPLACEMENT in tail else ""

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def _step(self, token_id: int) -> str | None:
        try:
            return self._stream.step(self._tokenizer.backend, token_id)
        except Exception:  # the library raises a bare Exception when a decoder rewrote what it had already returned
            self._stream = DecodeStream(skip_special_tokens=False)
            return self._stream.step(self._tokenizer.backend, token_id)
