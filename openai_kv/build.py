"""Builds the object graph from the settings and serves it; the one place that knows every layer."""

import json
import logging
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from openai_kv import model_store
from openai_kv.cache.demotion import Demotion, DemotionRule
from openai_kv.cache.manager import KVCacheManager
from openai_kv.cache.pin import PinLimits
from openai_kv.cache.policy import EvictionPolicy
from openai_kv.cache.store import SECONDS_UNUSED
from openai_kv.config import CacheSettings, Settings
from openai_kv.drafting.drafter import Drafter
from openai_kv.drafting.sources import sources_of
from openai_kv.drafting.step_costs import StepCosts
from openai_kv.engine.admission import QueueLimits
from openai_kv.engine.async_engine import AsyncEngine, OnStarted
from openai_kv.engine.detokenizer import Detokenizer
from openai_kv.engine.engine import Engine
from openai_kv.engine.overlapped_steps import OverlappedSteps
from openai_kv.engine.reporter import Reporter
from openai_kv.engine.steps import Steps, StepsInTurn
from openai_kv.exporting import ExporterGroup
from openai_kv.grammar.compiler import Vocabulary, vocabulary_of
from openai_kv.metrics import ServerInfo
from openai_kv.model_runner.loader import resolve_device
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.model_runner.step_times import measure_steps
from openai_kv.outputs import ModelInfo
from openai_kv.plugins import PluginRegistry, load_plugins
from openai_kv.recording import TraceRecorder, open_recording
from openai_kv.scheduler.scheduler import Scheduler, SchedulerLimits
from openai_kv.server.context import ServerContext
from openai_kv.server.health import versions
from openai_kv.server.run import run
from openai_kv.server.upstreams import Upstreams
from openai_kv.tiers.codec import record_bytes
from openai_kv.tiers.tier import CacheTier, TierInfo
from openai_kv.tiers.tier_thread import TierThread
from openai_kv.tiers.tiers import Tiers
from openai_kv.tokenizer import Tokenizer

logger = logging.getLogger(__name__)
SAMPLING_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True)
class EngineBuilder:
    """Loads model and tokenizer and connects everything up to the engine; called in the engine thread."""

    settings: Settings
    model_folder: Path
    model_name: str
    policy: EvictionPolicy
    exporters: ExporterGroup
    recording: TextIO | None = None
    tiers: tuple[CacheTier, ...] = ()
    tokenizer: "Future[Tokenizer]" = field(default_factory=Future)
    vocabulary: "Future[Vocabulary]" = field(default_factory=Future)

    def __call__(self, on_started: OnStarted) -> Engine:
        """Raises StartupError."""
        logger.info("loading %s", self.model_name)
        tokenizer = self._tokenizer()
        runner = ModelRunner.load(self.model_folder, self.model_name, self._runner_settings())
        manager = self._manager(runner)
        report_pool(runner)
        detokenizer = Detokenizer(tokenizer)
        drafter, tiers = self._drafter(runner, manager), self._tiers(runner)
        scheduler = Scheduler(
            manager, self._limits(runner), detokenizer, on_started=on_started, drafter=drafter, tiers=tiers
        )
        self.exporters.start(self._server_info(runner))
        self.tokenizer.set_result(tokenizer)
        self.vocabulary.set_result(vocabulary_of(tokenizer, runner.info.vocab_size, runner.info.eos_token_ids))
        reporter = Reporter(detokenizer, self.exporters, self._recorder(manager.block_size))
        return Engine(scheduler, runner, detokenizer, reporter, self._steps(scheduler, runner))

    def _steps(self, scheduler: Scheduler, runner: ModelRunner) -> Steps:
        """On the CPU planning takes a core away from the very step it is to gain time in."""
        wanted = self.settings.engine.async_scheduling
        ahead = wanted == "on" or (wanted == "auto" and runner.device.type != "cpu")
        return OverlappedSteps(scheduler, runner) if ahead else StepsInTurn(scheduler, runner)

    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.load(
            self.model_folder,
            trust_remote_code=self.settings.model.trust_remote_code,
            cache_bytes=self.settings.server.tokenizer_cache_bytes,
        )

    def _recorder(self, block_size: int) -> TraceRecorder | None:
        return TraceRecorder(self.recording, block_size) if self.recording is not None else None

    def _runner_settings(self) -> RunnerSettings:
        model, cache, engine = self.settings.model, self.settings.cache, self.settings.engine
        return RunnerSettings(
            dtype=model.dtype,
            device=model.device,
            attention_backend=engine.attention_backend,
            trust_remote_code=model.trust_remote_code,
            block_size=cache.block_size,
            num_blocks=cache.num_blocks or None,
            kv_cache_memory=None if cache.kv_cache_memory == "auto" else cache.kv_cache_memory,
            kv_cache_dtype=cache.kv_cache_dtype,
            num_hidden_slots=cache.num_hidden_slots,
            needs_attention=self.policy.needs_attention,
            max_num_batched_tokens=self._max_num_batched_tokens(),
            max_num_seqs=engine.max_num_seqs,
            max_model_len=self.settings.server.max_model_len or None,
            max_pinned_fraction=cache.max_pinned_fraction,
            cache_dir=self.settings.home / "operators",
            optimize=engine.optimize,
            quantization=model.quantization,
            batch_invariant=engine.batch_invariant,
            window_layout=cache.window_layout,
            window_share=cache.window_share,
            cuda_graphs=engine.cuda_graphs,
            tier_content=self._tier_content(),
        )

    def _tier_content(self) -> str:
        """Hidden states are there just after a block was full only."""
        writes_through = any(self._rule(tier).policy == "write-through" for tier in self.tiers)
        return self.settings.cache.tier_content if writes_through else "kv"

    def _manager(self, runner: ModelRunner) -> KVCacheManager:
        return KVCacheManager(
            num_blocks=runner.kv_pool.num_blocks,
            block_size=runner.kv_pool.block_size,
            policy=self.policy,
            num_hidden_slots=self.settings.cache.num_hidden_slots,
            observer=self.exporters,
            pin_limits=pin_limits(self.settings.cache),
            demotion=self._demotion(runner.info),
            window=runner.info.window,
            num_window_blocks=runner.num_window_blocks,
        )

    def _demotion(self, info: ModelInfo) -> Demotion:
        return Demotion(info.identity, [self._rule(tier) for tier in self.tiers], has_full=info.block_bytes > 0)

    def _rule(self, tier: CacheTier) -> DemotionRule:
        wanted = self.settings.cache.demotion
        return DemotionRule(tier.demotion if wanted == "auto" else wanted, self.settings.cache.demotion_hits)

    def _tiers(self, runner: ModelRunner) -> Tiers:
        """Their threads start here."""
        model = runner.info
        size = record_bytes(runner.kv_pool.block_size, max(model.stored_block_bytes, model.window_block_bytes))
        info = TierInfo(model.identity, size, SECONDS_UNUSED)
        threads = [TierThread(tier, info) for tier in self.tiers]
        return Tiers(
            threads,
            block_bytes=model.block_bytes,
            window_block_bytes=model.window_block_bytes,
            hidden_bytes=model.hidden_block_bytes,
            restore_seconds=model.restore_seconds,
            observer=self.exporters,
        )

    def _limits(self, runner: ModelRunner) -> SchedulerLimits:
        info = runner.info
        return SchedulerLimits(
            self.settings.engine.max_num_seqs, self._max_num_batched_tokens(), info.max_model_len, info.eos_token_ids
        )

    def _drafter(self, runner: ModelRunner, manager: KVCacheManager) -> Drafter | None:
        engine = self.settings.engine
        if engine.speculation == "off":
            return None
        logger.info("timing steps of several sizes, for speculation")
        costs = StepCosts.of(measure_steps(runner, self._max_num_batched_tokens()))
        return Drafter(sources_of(engine.speculation, manager.continuation), costs, engine.max_draft_tokens)

    def _max_num_batched_tokens(self) -> int:
        """Raises ConfigError for a device that isn't there."""
        return self.settings.engine.step_tokens(resolve_device(self.settings.model.device).type)

    def _server_info(self, runner: ModelRunner) -> ServerInfo:
        info = runner.info
        return ServerInfo(
            model_name=self.model_name,
            max_model_len=info.max_model_len,
            block_size=runner.kv_pool.block_size,
            num_blocks=runner.kv_pool.num_blocks,
            cache_dtype=info.kv_cache_dtype,
            backend=info.attention_backend,
            policy=self.policy.name,
            versions=versions(),
        )


def report_pool(runner: ModelRunner) -> None:
    """What a user may want to change before any request comes."""
    pool, info = runner.kv_pool, runner.info
    logger.info(
        "KV pool: %s tokens in blocks of %d, %s, %.2f GiB; a request may have %s tokens",
        f"{pool.num_blocks * pool.block_size:,}",
        pool.block_size,
        info.kv_cache_dtype,
        pool.nbytes / 2**30,
        f"{info.max_model_len:,}",
    )


def pin_limits(settings: CacheSettings) -> PinLimits:
    return PinLimits(settings.soft_pin_fraction, settings.max_pinned_fraction, settings.max_pins)


def serve(settings: Settings) -> int:
    """Fetch the model if need be and serve it until a signal; the exit code. Raises StartupError."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    registry = load_plugins(settings.cache.plugins_dir)
    for problem in registry.problems:
        logger.warning("skipped %s", problem)
    return run(build_context(settings, registry))


def build_context(settings: Settings, registry: PluginRegistry) -> ServerContext:
    """Everything the server is handed; the model is loaded later, by the engine thread. Raises StartupError."""
    options = settings.plugin_options
    policy = registry.create_policy(settings.cache.eviction_policy, options)
    exporters = ExporterGroup(registry.create_exporters(settings.exporter_names, options))
    folder = model_store.resolve(settings.model.model, home=settings.home, progress=_say)
    names = settings.server.served_model_names or (default_model_name(settings.model.model),)
    recording = open_recording(settings.cache.record_trace) if settings.cache.record_trace else None
    tiers = registry.create_tiers(settings.cache.tiers, options)
    builder = EngineBuilder(settings, folder, names[0], policy, exporters, recording, tiers)
    limits = QueueLimits(settings.server.max_queue, settings.server.max_queued_tokens, settings.server.queue_timeout)
    active = {
        policy.name,
        *settings.exporter_names,
        *settings.cache.tiers,
        *({settings.chat.tool_parser} - {"auto", "none"}),
    }
    return ServerContext(
        engine=AsyncEngine(builder, limits),
        get_tokenizer=builder.tokenizer.result,
        get_vocabulary=builder.vocabulary.result,
        settings=settings,
        model_names=names,
        exporters=exporters,
        plugins=registry.report(active, options),
        tool_parsers=registry.create_tool_parsers(settings.chat.tool_parser, options),
        sampling_defaults=generation_defaults(folder) if settings.engine.use_generation_config else {},
        upstreams=Upstreams.load(settings.upstreams),
    )


def default_model_name(model: str) -> str:
    """Names and Hub ids as they are; of a path the last part, without `.gguf`."""
    path = Path(model).expanduser()
    return path.resolve().name.removesuffix(".gguf") if path.exists() else model


def generation_defaults(folder: Path) -> Mapping[str, float]:
    """The model's own sampling defaults, where it has any."""
    file = folder / "generation_config.json"
    given = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: given[name] for name in SAMPLING_DEFAULTS if given.get(name) is not None}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
