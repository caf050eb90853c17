"""window_memory.py on a tiny model."""

from pathlib import Path

import pytest

from benchmarks.window_memory import measure
from tests.tiny_models import build, tiny_config


@pytest.mark.usefixtures("one_thread")
def test_one_conversation_in_both_layouts(tmp_path: Path) -> None:
    config = tiny_config("gemma3")
    config.max_position_embeddings = 2048
    build(config).save_pretrained(tmp_path)
    full, windowed = (measure(tmp_path, 1024, layout) for layout in ("full", "auto"))
    assert full.tokens == windowed.tokens
    assert (full.blocks, full.parts, windowed.blocks) == (64, 0, 64)
    assert 2 < windowed.parts <= -(-(24 + 512) // 16) + 1
    assert windowed.nbytes / full.nbytes == (64 + 36) / 128
