"""Settings: one frozen tree, one section per layer; flag > environment > aliases > TOML file > default."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from openai_kv.complaints import did_you_mean, first_error
from openai_kv.config_sources import (
    ENV_PREFIX,
    POLICY_ALIASES,
    AliasSource,
    EnvironmentSource,
    FileSource,
    environment,
    is_plugin_option,
    iter_options,
    nest,
    setting_name,
)
from openai_kv.config_upstreams import UpstreamSettings
from openai_kv.config_values import Dtype, Duration, Folder, KVFormat, Memory, ModelPattern, Names, Origins, Size
from openai_kv.errors import ConfigError

CPU_BATCHED_TOKENS = 512  # a step of 2048 holds up every stream for seconds, and computes no faster
BATCHED_TOKENS = 2048


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ServerSettings(Section):
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 lets the system choose")
    served_model_names: Names = Field(
        (), description="names clients may ask for, the first is canonical; * and ? are wild"
    )
    max_model_len: int = Field(0, ge=0, description="longest prompt plus answer in tokens; 0 = the model's own limit")
    strict_parameters: bool = Field(True, description="refuse unknown request fields instead of warning")
    max_body_bytes: Size = Field(8388608, gt=0, description="largest request body (8388608, 8MiB)")
    max_messages: int = Field(2048, gt=0, description="most messages in a chat")
    max_prompts: int = Field(128, gt=0, description="most prompts in one completion request")
    max_embedding_inputs: int = Field(2048, gt=0, description="most texts in one embeddings request")
    max_stop_strings: int = Field(16, gt=0, description="most stop strings in a request")
    max_stop_length: int = Field(1024, gt=0, description="longest stop string in characters")
    max_stop_token_ids: int = Field(128, gt=0, description="most token ids in stop_token_ids")
    max_n: int = Field(16, gt=0, description="most answers to one prompt: n and best_of")
    max_logprobs: int = Field(20, ge=0, description="most tokens to report log probabilities of at one position")
    max_logit_bias: int = Field(1024, gt=0, description="most entries of logit_bias")
    max_tools: int = Field(128, gt=0, description="most tools in a request")
    max_schema_bytes: int = Field(65536, gt=0, description="largest JSON schema in a request")
    max_schema_depth: int = Field(32, gt=0, le=64, description="deepest nesting of a JSON schema in a request")
    tokenizer_cache_bytes: Size = Field(
        16777216, ge=0, description="token ids kept of earlier turns of chats (16777216, 16MiB); 0 = off"
    )
    default_max_tokens: int = Field(0, ge=0, description="cap of a chat answer when the client gives none; 0 = off")
    max_queue: int = Field(256, gt=0, description="requests that may wait; beyond it 429")
    max_queued_tokens: int = Field(1048576, gt=0, description="prompt tokens that may wait; beyond it 429")
    queue_timeout: float = Field(120, gt=0, description="seconds a request may wait for its first step")
    request_timeout: float = Field(600, gt=0, description="seconds a whole request may take")
    body_timeout: float = Field(30, gt=0, description="seconds the body may take to arrive")
    write_timeout: float = Field(60, gt=0, description="seconds a client may leave its answer unread")
    rate_limit_rpm: int = Field(0, ge=0, description="generation requests a minute and API key; beyond it 429; 0 = off")
    sse_ping: float = Field(15, ge=0, description="longest silence in a stream in seconds; 0 = no keep-alive")
    drain_timeout: float = Field(30, ge=0, description="seconds running requests get after SIGTERM")
    cors_origins: Origins = Field((), description="origins of web pages that may call, or *; empty = CORS is off")
    max_stored_responses: int = Field(1024, ge=0, description="responses kept for previous_response_id; 0 = none")
    max_stored_bytes: Size = Field(
        67108864, ge=0, description="bytes of all stored responses, with their conversations (67108864, 64MiB)"
    )
    response_ttl: Duration = Field("24h", gt=0, validate_default=True, description="how long a response is kept")
    allow_priority: bool = Field(True, description="let requests set a priority")
    metrics_public: bool = Field(False, description="serve /metrics without a key")
    metrics_exporters: Names = Field(("prometheus",), description="metrics exporters to run, by name")


class AuthSettings(Section):
    keys_env: str = Field("OPENAI_KV_API_KEYS", description="environment variable with API keys, separated by commas")
    keys_file: str = Field("", description="file with API keys, one a line, # for comments")
    admin_key_env: str = Field("OPENAI_KV_ADMIN_KEY", description="environment variable with the admin key")
    admin_key_file: str = Field("", description="file with the admin key")
    isolate_cache_by_key: bool = Field(True, description="one API key never sees what another has cached")


class ModelSettings(Section):
    model: str = Field("smollm2-135m-instruct", min_length=1, description="model: a name, Hub id, folder or .gguf file")
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:N or mps")
    dtype: Dtype = Field("auto", description="type of the weights; auto = the model's own")
    quantization: Literal["none", "int8", "int4"] = Field(
        "none", description="type to keep the weights in; int8 and int4 (with the head in int8): CPU only"
    )
    embedding_pooling: Literal["mean", "last"] = Field(
        "mean", description="what /v1/embeddings makes of a text: mean of all tokens' states, or the last one's"
    )
    trust_remote_code: bool = Field(False, description="run Python code that comes with a Hub model")


class CacheSettings(Section):
    block_size: int = Field(16, gt=0, description="tokens of a KV block")
    num_blocks: int = Field(0, ge=0, description="KV blocks; 0 = as many as kv_cache_memory holds")
    kv_cache_memory: Memory = Field(
        "auto", description="memory for KV blocks: 1GiB, or 0.9 of what weights and a step leave; auto: 1GiB, CUDA 0.9"
    )
    kv_cache_dtype: KVFormat = Field(
        "auto",
        description="type of K and V in the KV blocks; auto = that of the weights; int8-int4 = int8 K, int4 V",
    )
    window_layout: Literal["auto", "full"] = Field(
        "auto", description="auto: layers with a sliding window free what it leaves behind; full: they keep everything"
    )
    window_share: float = Field(
        0.25, gt=0, le=1, description="blocks for layers with a window, for each block of the others"
    )
    eviction_policy: str = Field("lru", min_length=1, description="which cached blocks go first: a plugin's name")
    plugins_dir: str = Field("", description="folder whose *.py files are loaded as plugins; empty = off")
    num_hidden_slots: int = Field(1024, ge=0, description="prompts whose last hidden state is kept for exact repeats")
    ttl_default: Duration = Field(
        "30m", gt=0, validate_default=True, description="how long a pin or a breakpoint lasts that says nothing else"
    )
    ttl_max: Duration = Field("24h", gt=0, validate_default=True, description="longest ttl a client may ask for")
    soft_pin_fraction: float = Field(0.5, ge=0, le=1, description="share of the blocks that breakpoints may protect")
    max_pinned_fraction: float = Field(
        0.25, ge=0, lt=1, description="share of the blocks that may be pinned; the longest request fits in the rest"
    )
    max_pins: int = Field(256, ge=0, description="most pins at a time")
    tiers: Names = Field((), description="where KV blocks go that leave the pool: host, disk, valkey; empty = nowhere")
    demotion: Literal["auto", "write-back", "write-through", "after-hits"] = Field(
        "auto", description="when blocks go to tiers: evicted, full, or hit demotion_hits times; auto = the tier's own"
    )
    demotion_hits: int = Field(2, gt=0, description="hits after which a block goes to the tiers, with after-hits")
    tier_content: Literal["auto", "kv"] = Field(
        "auto", description="what tiers keep: K and V (kv), or hidden states where these are smaller (auto)"
    )
    expose_text: bool = Field(False, description="show the text of cached tokens in /cache/tree")
    record_trace: str = Field("", description="file to add a trace to, for simulate: hashes, never text; empty = off")

    @field_validator("tiers")
    @classmethod
    def name_each_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len({*value}) < len(value):
            raise ValueError("should name each tier once")
        return value


class EngineSettings(Section):
    max_num_seqs: int = Field(64, gt=0, description="most requests in one step")
    max_num_batched_tokens: int = Field(
        0, ge=0, description="most tokens in one step; 0 = 512 on the CPU, 2048 elsewhere, at least max_num_seqs"
    )
    attention_backend: Literal["auto", "sdpa", "cpu", "triton", "varlen"] = Field(
        "auto", description="attention backend: auto, sdpa, cpu, triton (CUDA) or varlen (CUDA, FlashAttention 3 or 4)"
    )
    cuda_graphs: bool = Field(True, description="record decode steps once and replay them; CUDA only")
    optimize: bool = Field(True, description="pack weights and fuse layers where a check at start finds them equal")
    batch_invariant: bool = Field(False, description="same bits however a prompt is cut, batched or cached; CPU only")
    async_scheduling: Literal["auto", "on", "off"] = Field(
        "auto", description="plan a step while the one before runs, where it can be known; auto: not on the CPU"
    )
    speculation: Literal["off", "ngram", "tree", "auto"] = Field(
        "off", description="guess tokens ahead: as the text had them before, as the cache knows them, or both (auto)"
    )
    max_draft_tokens: int = Field(16, gt=0, le=16, description="most guesses for a request in one step, at most 16")
    use_generation_config: bool = Field(False, description="take sampling defaults from the model")

    @field_validator("max_num_batched_tokens")
    @classmethod
    def hold_all_sequences(cls, value: int, info: ValidationInfo) -> int:
        if 0 < value < info.data.get("max_num_seqs", 0):
            raise ValueError("should be at least max_num_seqs, so that every sequence can go on in every step")
        return value

    def step_tokens(self, device: str) -> int:
        """The most of one step on a device of that type."""
        default = CPU_BATCHED_TOKENS if device == "cpu" else BATCHED_TOKENS
        return self.max_num_batched_tokens or max(default, self.max_num_seqs)


class OtelSettings(Section):
    endpoint: str = Field(
        "",
        pattern=r"^(https?://\S+)?$",
        description="base URL of an OTLP/HTTP receiver for spans and gen_ai metrics; empty = off",
    )


class ChatSettings(Section):
    tool_parser: str = Field(
        "auto",
        min_length=1,
        description="how tool calls are written: a plugin's name, none, or auto: by the template",
    )
    reasoning_parser: Literal["auto", "think", "none"] = Field(
        "auto", description="where reasoning is; auto: between <think> and </think> if the model knows them"
    )


def default_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "openai-kv"


class Settings(BaseSettings):
    """The whole tree. Read it with `load_settings`, which says in one line what is wrong."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    config: str = Field("", description="TOML file with settings")
    home: Folder = Field(default_factory=default_home, description="folder for fetched models and built operators")
    server: ServerSettings = ServerSettings()
    auth: AuthSettings = AuthSettings()
    model: ModelSettings = ModelSettings()
    cache: CacheSettings = CacheSettings()
    engine: EngineSettings = EngineSettings()
    otel: OtelSettings = OtelSettings()
    chat: ChatSettings = ChatSettings()
    plugins: Mapping[str, Mapping[str, Any]] = Field({}, description="options of plugins, by plugin name")
    upstreams: Mapping[ModelPattern, UpstreamSettings] = Field({}, description="servers for other models, by name")

    @property
    def exporter_names(self) -> tuple[str, ...]:
        """The metrics exporters to run."""
        return tuple(dict.fromkeys((*self.server.metrics_exporters, *(["otel"] if self.otel.endpoint else []))))

    @property
    def plugin_options(self) -> Mapping[str, Mapping[str, Any]]:
        """Of all plugins; what of them are settings of their own is added."""
        own: dict[str, Mapping[str, Any]] = {}
        if self.otel.endpoint:
            own["otel"] = {**self.plugins.get("otel", {}), "endpoint": self.otel.endpoint}
        own["disk"] = {"path": str(self.home / "blocks"), **self.plugins.get("disk", {})}
        return {**self.plugins, **own}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, EnvironmentSource(settings_cls), AliasSource(settings_cls), FileSource(settings_cls)


def load_settings(flags: Mapping[str, object] | None = None) -> Settings:
    """Settings from all sources; `flags` are values by dotted name (`server.port`). Raises ConfigError, one line."""
    try:
        settings = Settings(**nest(flags or {}))
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    refuse_unknown_variables(settings)
    return settings


def refuse_unknown_variables(settings: Settings) -> None:
    """After loading, because the settings say which variables hold keys."""
    options = list(iter_options(Settings))
    names = {option.name for option in options}
    exempt = {*POLICY_ALIASES, settings.auth.keys_env, settings.auth.admin_key_env}
    exempt |= {upstream.api_key_env for upstream in settings.upstreams.values()}
    for variable, _ in environment():
        name = setting_name(variable)
        if variable not in exempt and name not in names and not is_plugin_option(name):
            known = {option.variable for option in options}
            without_section = {name for name in known if name.endswith(f"__{variable.removeprefix(ENV_PREFIX)}")}
            hint = did_you_mean(variable, without_section or exempt | known)
            raise ConfigError(f"unknown environment variable {variable}{hint}")


def explain(error: ValidationError) -> str:
    """The first complaint in one line, naming the setting."""
    first = first_error(error)
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = {*Settings.model_fields, *(option.name for option in iter_options(Settings))}
        if first["loc"][0] == "upstreams":
            known = {f"{name.rpartition('.')[0]}.{field}" for field in UpstreamSettings.model_fields}
        return f"unknown setting {name}{did_you_mean(name, known)}"
    if first["type"] == "missing":
        return f"{name} is missing"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{name} = {first['input']!r}: {message}"
