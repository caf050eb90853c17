"""The command `plan`: from a configuration to a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from openai_kv import model_store
from openai_kv.config import CacheSettings, EngineSettings, Settings
from openai_kv.config_values import check_writable
from openai_kv.errors import ConfigError
from openai_kv.model_runner.outline import ModelOutline, read_outline
from openai_kv.planning.plan import Plan, Wish, make_plan
from openai_kv.planning.report import describe, make_table, show_bytes, write_json

DEVICE = "cpu"  # that the plan is for


@dataclass(frozen=True, slots=True)
class Options:
    """The command line; 0 and the empty text: not given."""

    model: str
    context: int
    concurrency: int
    memory: int
    json: Path | None


def plan(settings: Settings, own: Mapping[str, Any], progress: model_store.Progress) -> int:
    """Print the table, write the file; 1 if what was wished fits in no format. Raises ConfigError, ModelLoadError."""
    options = Options(**own)
    check_writable(options.json)
    folder = model_store.resolve_config(options.model or settings.model.model, home=settings.home, progress=progress)
    outline = read_outline(
        folder,
        dtype=settings.model.dtype,
        quantization=settings.model.quantization,
        trust_remote_code=settings.model.trust_remote_code,
        window_layout=settings.cache.window_layout,
    )
    wish = make_wish(options, outline, settings.cache, settings.engine)
    made = make_plan(outline, wish, settings.cache.kv_cache_dtype)
    Console().print(describe(outline), make_table(made), highlight=False, sep="\n")
    if options.json:
        write_json(options.json, made)
    return tell_misfit(made)


def make_wish(options: Options, outline: ModelOutline, cache: CacheSettings, engine: EngineSettings) -> Wish:
    """Raises ConfigError if neither the command nor the model says how long a conversation is, or it says too much."""
    context = options.context or outline.max_model_len
    if context is None:
        raise ConfigError("the model's configuration states no longest context: give --context")
    if outline.max_model_len is not None and context > outline.max_model_len:
        raise ConfigError(f"--context {context}: the model takes {outline.max_model_len} tokens at most")
    return Wish(
        context,
        options.concurrency,
        cache.block_size,
        options.memory or None,
        window_share=cache.window_share,
        step_tokens=engine.step_tokens(DEVICE),
        num_seqs=engine.max_num_seqs,
        max_pinned_fraction=cache.max_pinned_fraction,
    )


def tell_misfit(made: Plan) -> int:
    if any(row.conversations >= made.wish.concurrency for row in made.formats):
        return 0
    least = min(row.needed_bytes for row in made.formats) + made.outline.weight_bytes
    Console(stderr=True).print(f"does not fit: it takes at least {show_bytes(least)}", markup=False, highlight=False)
    return 1
