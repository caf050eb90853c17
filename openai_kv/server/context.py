"""What the server is handed: the whole outside world of the HTTP layer in one frozen object."""

import asyncio
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from openai_kv.config import Settings
from openai_kv.engine.async_engine import AsyncEngine, EngineState
from openai_kv.errors import UnavailableError
from openai_kv.exporting import ExporterGroup
from openai_kv.grammar.compiler import GrammarCompiler, Vocabulary, vocabulary_of
from openai_kv.parsing.tool_parser import ToolParser
from openai_kv.server.names import is_pattern, matches
from openai_kv.server.responses.store import ResponseStore
from openai_kv.server.upstreams import Upstream, Upstreams
from openai_kv.tokenizer import Tokenizer


@dataclass(slots=True)
class Lifecycle:
    """From the first signal (`drain_deadline`, of `time.monotonic`) no new work is taken; `idle`: no call works."""

    drain_deadline: float | None = None
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    _calls: int = 0
    _limits: set[asyncio.Timeout] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.idle.set()

    @contextmanager
    def working(self) -> Generator[None, None, None]:
        """Around a call that a drain has to wait for."""
        self._calls += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self.idle.set()

    @contextmanager
    def bounding(self, limit: asyncio.Timeout) -> Generator[None, None, None]:
        """Around what `cut` ends by letting `limit` run out."""
        self._limits.add(limit)
        try:
            yield
        finally:
            self._limits.discard(limit)

    def cut(self) -> int:
        """End all calls that still work; their number."""
        self.is_over = True
        for limit in self._limits:
            if not limit.expired():
                limit.reschedule(asyncio.get_running_loop().time())
        return self._calls

    def refusal(self) -> UnavailableError | None:
        """The error for new work while draining; `retry_after` is what is left of the grace, 1 to 60 s."""
        if self.drain_deadline is None:
            return None
        grace = math.ceil(self.drain_deadline - time.monotonic())
        return UnavailableError("The server is draining.", code="draining", retry_after=min(max(grace, 1), 60))


class PluginRow(Protocol):
    """One plugin as GET /plugins tells of it; secrets among `options` are masked already."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def hooks(self) -> tuple[str, ...]: ...
    @property
    def active(self) -> bool: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class ServerContext:
    """`model_names`: the first is canonical, entries with * or ? match others.

    `get_tokenizer` is called in worker threads and only once the engine is ready: it may belong to what was loading.
    `get_vocabulary`: the same for grammars; by default it is made with the first one, which holds up the interpreter.
    `tool_parsers`: those `auto` may choose from, or the one that is configured.
    `sampling_defaults` replace the contract's for fields a request leaves out. `start_time` is Unix time.
    """

    engine: AsyncEngine
    get_tokenizer: Callable[[], Tokenizer]
    settings: Settings
    model_names: tuple[str, ...]
    exporters: ExporterGroup = field(default_factory=ExporterGroup)
    plugins: Sequence[PluginRow] = ()
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    tool_parsers: Sequence[ToolParser] = ()
    start_time: float = field(default_factory=time.time)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    upstreams: Upstreams = field(default_factory=Upstreams)
    get_vocabulary: Callable[[], Vocabulary] | None = None
    grammars: GrammarCompiler = field(init=False)
    responses: ResponseStore = field(init=False)

    def __post_init__(self) -> None:
        limits = self.settings.server
        store = ResponseStore(limits.max_stored_responses, limits.max_stored_bytes, limits.response_ttl)
        object.__setattr__(self, "grammars", GrammarCompiler(self.get_vocabulary or self._make_vocabulary))
        object.__setattr__(self, "responses", store)

    def _make_vocabulary(self) -> Vocabulary:
        info = self.engine.info
        return vocabulary_of(self.get_tokenizer(), info.vocab_size, info.eos_token_ids)

    def serves(self, model: str) -> bool:
        return any(name == model or (is_pattern(name) and matches(model, name)) for name in self.model_names)

    def served_as(self, model: str | None) -> str:
        """The configured name or pattern by which `model` is served: of these there are only so many."""
        if model is None or model in self.model_names:
            return model or self.model_names[0]
        patterns = (name for name in self.model_names if is_pattern(name) and matches(model, name))
        return next(patterns, self.model_names[0])

    def upstream_for(self, model: object) -> Upstream | None:
        """Who answers for `model` on the routes that are forwarded, if we don't: an exact name of ours comes first."""
        is_remote = isinstance(model, str) and model not in self.listed_models()
        return self.upstreams.choose(str(model)) if is_remote else None

    def listed_models(self) -> list[str]:
        return [name for name in self.model_names if not is_pattern(name)]

    def require_ready(self) -> None:
        """Raises UnavailableError unless the model can be used."""
        if self.engine.state is EngineState.LOADING:
            raise UnavailableError("The model is still loading.", code="model_loading", retry_after=5)
        if self.engine.state is EngineState.DEAD:
            raise UnavailableError("The engine has stopped; the server must be restarted.", retry_after=30)
