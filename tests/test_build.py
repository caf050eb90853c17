import json
from pathlib import Path

import pytest
from tokenizers import pre_tokenizers

from openai_kv.build import EngineBuilder, generation_defaults
from openai_kv.config import CacheSettings, EngineSettings, ModelSettings, Settings
from openai_kv.default_plugins.lru import LRUPolicy
from openai_kv.engine.engine import Engine
from openai_kv.engine.overlapped_steps import OverlappedSteps
from openai_kv.engine.steps import Steps, StepsInTurn
from openai_kv.exporting import ExporterGroup
from openai_kv.tiers.disk import DiskTier
from openai_kv.tiers.host import HostTier
from openai_kv.tiers.tier import CacheTier
from tests.harness import Run, make_request
from tests.tiny_models import build, tiny_config
from tests.tiny_tokenizer import byte_level


def test_sampling_defaults_are_the_models_own(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}
    given = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    assert generation_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}


@pytest.mark.parametrize("speculation", ["off", "auto"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_an_engine_is_built_for_layers_of_any_kind(
    tmp_path: Path, family: str, speculation: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    config = tiny_config(family)
    config.vocab_size = 300
    build(config).save_pretrained(tmp_path)
    byte_level(sorted(pre_tokenizers.ByteLevel.alphabet())).save_pretrained(str(tmp_path))
    settings = Settings(
        home=tmp_path,
        model=ModelSettings(model=str(tmp_path), dtype="float32"),
        cache=CacheSettings(num_blocks=16),
        engine=EngineSettings(speculation=speculation, attention_backend="sdpa", optimize=False),
    )
    run = Run(EngineBuilder(settings, tmp_path, "tiny", LRUPolicy(), ExporterGroup())(lambda request: None))
    (tokens,) = run.generate(make_request([5, 6, 7] * 30, 8, temperature=0.0, ignore_eos=True))
    assert len(tokens) == 8
    assert caplog.messages[0] == "loading tiny"
    (pool,) = [message for message in caplog.messages if message.startswith("KV pool: ")]
    assert pool.startswith("KV pool: 256 tokens in blocks of 16, float32, ")
    assert any(message.startswith("timing steps") for message in caplog.messages) is (speculation != "off")


@pytest.mark.parametrize(("wanted", "steps"), [("auto", StepsInTurn), ("off", StepsInTurn), ("on", OverlappedSteps)])
def test_steps_are_planned_ahead_where_it_is_asked_for(tmp_path: Path, wanted: str, steps: type[Steps]) -> None:
    engine = build_tiny(tmp_path, "gpt2", async_scheduling=wanted)
    assert isinstance(engine.steps, steps)
    Run(engine).generate(make_request([5, 6, 7], 8, temperature=0.0))
    engine.close()


@pytest.mark.parametrize(("tier", "hidden"), [(DiskTier, True), (HostTier, False)])
def test_tiers_that_write_through_keep_hidden_states(tmp_path: Path, tier: type[CacheTier], hidden: bool) -> None:
    engine = build_with_tier(tmp_path, "gpt2", tier)
    info = engine.runner.info
    assert info.stored_block_bytes == (info.block_bytes // 2 if hidden else info.block_bytes)
    engine.close()


def build_with_tier(folder: Path, family: str, tier: type[CacheTier]) -> Engine:
    options = {"path": str(folder / "blocks")} if tier is DiskTier else {}
    return build_tiny(folder, family, (tier(**options),))


def build_tiny(folder: Path, family: str, tiers: tuple[CacheTier, ...] = (), **engine: object) -> Engine:
    config = tiny_config(family)
    config.vocab_size = 300
    build(config).save_pretrained(folder)
    byte_level(sorted(pre_tokenizers.ByteLevel.alphabet())).save_pretrained(str(folder))
    settings = Settings(
        home=folder,
        model=ModelSettings(model=str(folder), dtype="float32"),
        cache=CacheSettings(num_blocks=16),
        engine=EngineSettings.model_validate({"attention_backend": "sdpa", "optimize": False, **engine}),
    )
    return EngineBuilder(settings, folder, "tiny", LRUPolicy(), ExporterGroup(), tiers=tiers)(lambda request: None)
