"""From a GGUF file to a folder that loads."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoTokenizer

from openai_kv.errors import ModelLoadError
from openai_kv.model_runner.convert import convert_gguf
from openai_kv.model_runner.loader import load_model

HIDDEN, LAYERS, FEED_FORWARD, KV = 32, 2, 48, 16
TOKENS = ["<s>", "</s>", "<unk>", *(chr(code) for code in range(33, 127)), "ab"]


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """A tiny random Llama with a byte-pair tokenizer; returns its tensors by their GGUF names."""
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * (len(TOKENS) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    tensors = _tensors()
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def _tensors() -> dict[str, np.ndarray]:
    shapes = {"token_embd": (len(TOKENS), HIDDEN), "output_norm": (HIDDEN,), "output": (len(TOKENS), HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k": (KV, HIDDEN),
            f"blk.{layer}.attn_v": (KV, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_up": (FEED_FORWARD, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, FEED_FORWARD),
        }
    generator = np.random.default_rng(0)
    return {f"{name}.weight": generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def test_a_converted_file_loads_and_nothing_else_is_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tensors = write_gguf(tmp_path / "tiny.gguf")
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "out" / "tiny")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tiny"]
    assert capfd.readouterr().err == ""

    model = load_model(tmp_path / "out" / "tiny")
    assert (model.name, model.model.dtype, model.num_layers) == ("LlamaForCausalLM", torch.bfloat16, LAYERS)
    assert model.eos_token_ids == {1} and model.max_model_len == 128
    embedding = model.model.state_dict()["model.embed_tokens.weight"]
    assert torch.equal(embedding.cpu(), torch.from_numpy(tensors["token_embd.weight"]).bfloat16())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "tiny")
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc", add_special_tokens=False)["input_ids"]) == ["ab", "c"]


def test_a_file_that_is_no_gguf_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelLoadError, match=r"can't convert broken\.gguf: ") as caught:
        convert_gguf(tmp_path / "broken.gguf", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]
