"""From a folder to a model; whatever is wrong is said in one line."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from openai_kv.cgroup import Cgroup
from openai_kv.errors import ConfigError, ModelLoadError, OperatorBuildError
from openai_kv.model_runner import memory, model_runner
from openai_kv.model_runner.attention import select
from openai_kv.model_runner.attention.select import select_backend
from openai_kv.model_runner.fused.linear import PackedLinear
from openai_kv.model_runner.fused.modules import FusedNorm
from openai_kv.model_runner.loader import load_model, resolve_device
from openai_kv.model_runner.memory import GIB, check_fits, kv_cache_bytes
from openai_kv.model_runner.model_runner import ModelRunner
from openai_kv.model_runner.settings import RunnerSettings
from tests.tiny_models import save_tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model("llama", tmp_path_factory.mktemp("llama"))


def test_loads_a_folder_in_its_own_type_or_another(folder: Path) -> None:
    assert load_model(folder).model.dtype == torch.float32
    assert load_model(folder, dtype="bfloat16").model.dtype == torch.bfloat16
    assert not load_model(folder).model.training


def test_loading_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_model(folder)
    assert capfd.readouterr() == ("", "")


def test_a_runner_from_a_folder(folder: Path) -> None:
    runner = ModelRunner.load(folder, "mine", RunnerSettings(device="cpu", attention_backend="sdpa", num_blocks=5))
    assert (runner.info.name, runner.info.architecture) == ("mine", "LlamaForCausalLM")
    assert (runner.kv_pool.num_blocks, runner.kv_pool.block_size) == (5, 16)


def test_ends_of_sequence_come_from_both_configurations(folder: Path, tmp_path: Path) -> None:
    save_tiny_model("llama", tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_model(tmp_path).eos_token_ids == {1, 5, 6}
    assert load_model(folder).eos_token_ids == {1}


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        load_model(tmp_path)
    assert str(caught.value).startswith(f"can't load a model from {tmp_path}: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nonesuch"}))
    with pytest.raises(ModelLoadError, match="nonesuch"):
        load_model(tmp_path)


def test_bad_settings(folder: Path) -> None:
    with pytest.raises(ConfigError, match="dtype: 'int3' is none of auto, float32"):
        load_model(folder, dtype="int3")
    with pytest.raises(ConfigError, match="device: 'toaster' is none of"):
        resolve_device("toaster")
    with pytest.raises(ConfigError, match="attention_backend: 'magic' is none of"):
        select_backend("magic", CPU)
    with pytest.raises(ConfigError, match="'cpu' can't run on cuda"):
        select_backend("cpu", torch.device("cuda"))


def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="device: cuda:0 is not available here"):
        resolve_device("cuda:0")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == CPU


def test_without_the_operator_sdpa_does_its_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OperatorBuildError("no compiler")

    monkeypatch.setattr(select, "load_cpu_backend", fail)
    with caplog.at_level(logging.WARNING):
        assert select_backend("auto", CPU, tmp_path).name == "sdpa"
    assert "using sdpa: no compiler" in caplog.text
    with pytest.raises(ConfigError, match="batch_invariant: attention backend cpu is not available: no compiler"):
        select_backend("auto", CPU, tmp_path, batch_invariant=True)


def test_other_devices_take_sdpa() -> None:
    assert select_backend("auto", torch.device("cuda")).name == "sdpa"
    assert select_backend("sdpa", CPU).name == "sdpa"


def test_memory_for_the_pool() -> None:
    assert kv_cache_bytes(None, CPU) == GIB
    assert kv_cache_bytes(12345, CPU) == 12345
    assert 0 < kv_cache_bytes(0.01, CPU) < kv_cache_bytes(0.9, CPU)
    assert kv_cache_bytes(0.9, CPU, 2**60) == 0


def test_what_a_step_takes_is_kept_out_of_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_free_bytes", lambda device: 10 * GIB)
    assert kv_cache_bytes(0.5, CPU, 4 * GIB) == 3 * GIB
    check_fits(6 * GIB, CPU, 4 * GIB)
    with pytest.raises(ConfigError, match=r"of 6.1 GiB does not fit: 10.0 GiB are free and a step takes 4.0 GiB"):
        check_fits(6 * GIB + GIB // 10, CPU, 4 * GIB)


def test_a_pool_fits_into_the_limit_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cgroup, "free_memory", lambda _: 2**20)
    assert kv_cache_bytes(0.5, CPU) == 2**19
    with pytest.raises(ConfigError, match=r"0\.0 GiB are free"):
        check_fits(2**20 + 1, CPU)


def test_a_model_runs_on_as_many_threads_as_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    monkeypatch.setattr(model_runner, "num_cpus", lambda: 2)
    settings = RunnerSettings(num_blocks=4, attention_backend="sdpa", optimize=False)
    ModelRunner.load(save_tiny_model("llama", tmp_path), "tiny", settings)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    "settings", [{"optimize": False}, {"attention_backend": "sdpa"}, {"optimize": False, "quantization": "int4"}]
)
def test_quantization_needs_packed_layers(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = save_tiny_model("llama", tmp_path)
    with pytest.raises(ConfigError, match="quantization"):
        ModelRunner.load(folder, "tiny", RunnerSettings(num_blocks=8, **{"quantization": "int8", **settings}))


def test_a_model_is_loaded_optimized_unless_told_otherwise(tmp_path: Path) -> None:
    folder = save_tiny_model("llama", tmp_path)
    for settings, expected in (
        ({}, 14),
        ({"quantization": "int8"}, 5),
        ({"quantization": "int4"}, 5),
        ({"optimize": False}, 0),
    ):
        runner = ModelRunner.load(folder, "tiny", RunnerSettings(num_blocks=8, **settings))
        ours = [module for module in runner.model.model.modules() if "fused" in type(module).__module__]
        packed = [module for module in ours if isinstance(module, PackedLinear | FusedNorm)]
        assert len(packed) == expected
