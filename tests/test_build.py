import gc
import json
from pathlib import Path

from openai_kv.build import generation_defaults, settle_heap


def test_what_is_loaded_is_nothing_for_the_garbage_collector() -> None:
    settle_heap()
    try:
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_sampling_defaults_are_the_models_own(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}
    given = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    assert generation_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}
