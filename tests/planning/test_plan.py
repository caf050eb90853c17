"""`openai-kv plan`: by formula what a served model really takes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from openai_kv.cli import main
from openai_kv.model_runner.kv_formats import FORMATS
from openai_kv.model_runner.kv_pool import KVPool
from openai_kv.model_runner.layer_groups import LayerGroups
from openai_kv.model_runner.loader import load_model
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.open_blocks import OpenSlots
from openai_kv.model_runner.outline import read_outline
from openai_kv.model_runner.probe import measure
from openai_kv.model_runner.settings import RunnerSettings
from openai_kv.planning.plan import Wish, make_plan
from tests.tiny_models import FAMILIES, build, save_tiny_model

SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
TOKEN_BYTES = 2 * 30 * 3 * 64 * 2
WEIGHT_BYTES = 2 * 134_515_008  # the model card's 135 M


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Of a model nobody has here: a configuration and nothing else."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMOLLM2), encoding="utf-8")
    return path


def plan(path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    out = path.parent / "plan.json"
    code = main(["plan", str(path), "--json", str(out), *options])
    return code, json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("family", FAMILIES)
def test_it_says_what_storages_take(family: str, tmp_path: Path) -> None:
    served = load_model(save_tiny_model(family, tmp_path))
    (tmp_path / "model.safetensors").unlink()
    outline = read_outline(tmp_path)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in served.model.parameters()}
    assert outline.weight_bytes == pytest.approx(sum(storage.nbytes() for storage in storages.values()), rel=0.02)
    shapes = measure(served)
    groups = LayerGroups.of(shapes.windows)
    wish = Wish(context=90, concurrency=2, block_size=16, window_share=0.75, step_tokens=16, num_seqs=2)
    open_slots = OpenSlots.for_steps(2, 16, 16, served.model.dtype)
    formats = make_plan(outline, wish).formats
    assert [planned.kv_cache_dtype for planned in formats] == [*FORMATS]
    for planned in formats:
        chosen = FORMATS[planned.kv_cache_dtype]
        pools = [
            KVPool.allocate(layers, num_blocks=count, block_size=16, kv_format=chosen, open_slots=open_slots)
            for layers, count in ((groups.full(shapes.layers), 12), (groups.in_window(shapes.layers), 10))
        ]
        assert (planned.needed_blocks, planned.needed_bytes) == (12, sum(pool.nbytes for pool in pools))
        assert planned.needed_window_blocks == (10 if groups.window else 0)


@pytest.mark.parametrize("kv_cache_dtype", ["bfloat16", "int8-int4", "int4-int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_it_says_what_the_pools_of_a_server_take(family: str, kv_cache_dtype: str, tmp_path: Path) -> None:
    """Small ones, where the slots of open blocks are a large part."""
    folder = save_tiny_model(family, tmp_path)
    wish = Wish(context=96, concurrency=1, block_size=16, step_tokens=16, num_seqs=4)
    (planned,) = make_plan(read_outline(folder), wish, kv_cache_dtype).formats
    settings = RunnerSettings(
        kv_cache_dtype=kv_cache_dtype,
        num_blocks=planned.needed_blocks,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        window_layout="auto",
        attention_backend="sdpa",
        optimize=False,
    )
    runner = ModelRunner.load(folder, "tiny", settings)
    taken = runner.kv_pool.nbytes + (runner.window_pool.nbytes if runner.window_pool else 0)
    assert planned.needed_bytes == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("tied", [True, False])
def test_it_says_what_quantized_weights_take(tied: bool, quantization: str, tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "hidden_size": 192,
        "intermediate_size": 512,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
    }
    build(LlamaConfig(**SMOLLM2 | small | {"tie_word_embeddings": tied, "vocab_size": 4096})).save_pretrained(tmp_path)
    settings = RunnerSettings(dtype="bfloat16", num_blocks=8, quantization=quantization)
    served = ModelRunner.load(tmp_path, "small", settings).model.model
    tensors = {tensor.data_ptr(): tensor for tensor in (*served.parameters(), *served.buffers())}
    outline = read_outline(tmp_path, dtype="bfloat16", quantization=quantization)
    assert outline.weight_bytes == pytest.approx(sum(tensor.nbytes for tensor in tensors.values()), rel=0.02)


def test_a_row_for_each_format_the_weights_own_first(config: Path) -> None:
    _, made = plan(config)
    rows = {row["kv_cache_dtype"]: row["token_bytes"] for row in made["formats"]}
    assert list(rows.items()) == [
        ("bfloat16", TOKEN_BYTES),
        ("float32", 2 * TOKEN_BYTES),
        ("float16", TOKEN_BYTES),
        ("int8", 2 * 30 * 3 * (64 + 2)),
        ("int8-int4", 30 * 3 * ((64 + 2) + (32 + 8))),
        ("int4-int8", 30 * 3 * ((32 + 4 * 64 / 16) + (64 + 2))),
        ("int4", 30 * 3 * ((32 + 4 * 64 / 16) + (32 + 8))),
    ]


def test_what_the_same_memory_holds(config: Path) -> None:
    _, made = plan(config, "--memory", "2GiB")
    tokens = {row["kv_cache_dtype"]: row["num_tokens"] for row in made["formats"]}
    assert tokens["int8"] > 1.9 * tokens["bfloat16"]
    assert tokens["int8-int4"] > 2.4 * tokens["bfloat16"]


def test_one_format_can_be_chosen(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, made = plan(config, "--kv-cache-dtype", "float32")
    assert [row["kv_cache_dtype"] for row in made["formats"]] == ["float32"]
    assert main(["plan", str(config), "--kv-cache-dtype", "int3"]) == 2
    assert "'int8-int4', 'int4-int8' or 'int4'" in capsys.readouterr().err


def test_the_formula_of_a_known_model(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = plan(config, "--context", "1000", "--concurrency", "4", "--memory", "1GiB")
    row = made["formats"][0]
    assert (code, row["kv_cache_dtype"], row["token_bytes"]) == (0, "bfloat16", TOKEN_BYTES)
    assert made["weight_bytes"] == pytest.approx(WEIGHT_BYTES, rel=1e-4)
    assert row["needed_blocks"] == 4 * 63
    assert row["num_blocks"] == (2**30 - made["weight_bytes"]) // (16 * TOKEN_BYTES)
    assert row["conversations"] == row["num_blocks"] // 63
    assert "2 * 30 layers * 3 heads * 64 = 11,520 numbers" in capsys.readouterr().out


def test_without_a_context_it_is_the_longest(config: Path) -> None:
    _, made = plan(config)
    assert made["context"] == 8192
    assert made["formats"][0]["needed_bytes"] == 8192 * TOKEN_BYTES


def test_another_dtype_and_block_size(config: Path) -> None:
    _, made = plan(config, "--dtype", "float32", "--block-size", "64", "--context", "65")
    row = made["formats"][0]
    assert (row["kv_cache_dtype"], row["token_bytes"], row["needed_blocks"]) == ("float32", 2 * TOKEN_BYTES, 2)


def test_what_does_not_fit_is_an_exit_code(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, made = plan(config, "--memory", "300MB", "--kv-cache-dtype", "bfloat16")
    assert (code, made["formats"][0]["conversations"]) == (1, 0)
    assert "does not fit: it takes at least 436.6 MiB" in capsys.readouterr().err


def test_memory_below_the_weights_holds_nothing(config: Path) -> None:
    code, made = plan(config, "--memory", "100MB")
    assert (code, made["formats"][0]["num_blocks"]) == (1, 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--memory", "much"], "'much' should be a size like 1GiB"),
        (["--memory", "0"], "'0' should be more than nothing"),
        (["--context", "0"], "'0' is not a whole number above 0"),
        (["--context", "9000"], "--context 9000: the model takes 8192 tokens at most"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at/all.json: no such folder"),
        (["--json", "/"], "/: a folder, not a file"),
    ],
)
def test_wrong_options_are_told(
    config: Path, options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(config), *options]) == 2
    assert complaint in capsys.readouterr().err


def test_a_file_that_is_no_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf-8")
    for name in (path, tmp_path / "other.json"):
        assert main(["plan", str(name)]) == 1
        assert f"can't read a model's configuration from {name}" in capsys.readouterr().err


def test_what_can_be_no_path_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "a" * 300]) == 1
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("odd", "complaint"),
    [
        ({"num_hidden_layers": 0}, "LlamaForCausalLM: the configuration says 0 layers"),
        ({"num_hidden_layers": -1}, "LlamaForCausalLM: the configuration says -1 layers"),
        ({"num_hidden_layers": "30"}, "'num_hidden_layers' expected int, got str"),
        ({"num_key_value_heads": 0}, "ZeroDivisionError"),
    ],
)
def test_odd_configurations_are_refused_with_the_reason(
    config: Path, odd: dict[str, Any], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(json.dumps(SMOLLM2 | odd), encoding="utf-8")
    assert main(["plan", str(config), "--memory", "1GiB"]) == 1
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("stated", [0, -5])
def test_a_context_of_nothing_is_none_stated(config: Path, stated: int, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(json.dumps(SMOLLM2 | {"max_position_embeddings": stated}), encoding="utf-8")
    assert main(["plan", str(config)]) == 2
    assert "states no longest context: give --context" in capsys.readouterr().err
    code, made = plan(config, "--context", "100")
    assert (code, made["context"], made["max_model_len"]) == (0, 100, None)


def test_no_memory_is_taken_for_weights(config: Path) -> None:
    """A model of 400 GB is planned in a moment."""
    large = {
        **SMOLLM2,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "num_hidden_layers": 80,
    }
    config.write_text(json.dumps({**large, "intermediate_size": 65536, "tie_word_embeddings": False}), encoding="utf-8")
    outline = read_outline(config)
    assert outline.weight_bytes > 270e9
    assert outline.block_bytes("bfloat16", 1) == 2 * 80 * 8 * 128 * torch.bfloat16.itemsize
