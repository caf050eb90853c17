import json
from pathlib import Path

from openai_kv.build import generation_defaults


def test_sampling_defaults_are_the_models_own(tmp_path: Path) -> None:
    assert generation_defaults(tmp_path) == {}
    given = {"temperature": 0.6, "top_k": 20, "top_p": None, "do_sample": True, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    assert generation_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}
