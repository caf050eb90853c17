"""For benchmarks of tiers under trouble: a model, prompts that share beginnings, and the one right answer to each."""

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, LlamaConfig

from benchmarks.forked_server import forked
from benchmarks.serving import post
from openai_kv import model_store
from openai_kv.config import default_home
from tests.tiny_models import build
from tests.tiny_tokenizer import tiny_tokenizer

OPTIONS = ("--batch-invariant", "--num-blocks", "224", "--max-model-len", "1024")
STEMS, PROMPTS = 6, 40
RANDOM: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "head_dim": 32,
    "num_attention_heads": 8, "num_key_value_heads": 2, "initializer_range": 0.2, "eos_token_id": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """`options` serve the model; `right` has the answers of a server without tiers."""

    options: tuple[str, ...]
    prompts: list[list[int]]
    right: list[list[int]]

    @classmethod
    def make(cls, model: str, folder: Path, seed: int) -> "Subject":
        """Of the model of this name or folder, or of a small random one, which is written to `folder`."""
        model = model or save_random(folder / "model")
        config = AutoConfig.from_pretrained(model_store.resolve(model, home=default_home(), progress=print))
        options, prompts = ("--model", model, *OPTIONS), make_prompts(seed, config.vocab_size)
        with forked(*options, environment={}) as server:
            right = [post(server, "/generate", body(prompt))["token_ids"] for prompt in prompts]
        return cls(options, prompts, right)


def save_random(folder: Path) -> str:
    build(LlamaConfig(**RANDOM)).save_pretrained(folder)
    tiny_tokenizer()._hf.save_pretrained(folder)
    return str(folder)


def make_prompts(seed: int, vocab_size: int) -> list[list[int]]:
    """Of 100 to 800 tokens, a few beginnings among them all."""
    rng, ids = random.Random(seed), range(3, min(20000, vocab_size))
    stems = [rng.choices(ids, k=rng.randrange(80, 700)) for _ in range(STEMS)]
    return [[*rng.choice(stems), *rng.choices(ids, k=rng.randrange(20, 100))] for _ in range(PROMPTS)]


def body(prompt: list[int]) -> dict[str, Any]:
    return {"prompt_token_ids": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def records(folder: Path) -> list[Path]:
    """The disk tier's files, those of all identities."""
    return sorted(path for path in folder.rglob("*") if len(path.name) == 64)


def unfinished(folder: Path) -> set[Path]:
    return {*folder.rglob("*.part")}


def damage(folder: Path, rng: random.Random, count: int) -> Mapping[str, int]:
    """So many records, as a failing disk or somebody with too little room would; how, and how many."""
    found = records(folder)
    chosen = rng.sample(found, min(count, len(found)))
    kinds = [rng.choice(["flipped", "cut", "deleted"]) for _ in chosen]
    for path, kind in zip(chosen, kinds, strict=True):
        change(path, kind, rng)
    return {kind: kinds.count(kind) for kind in sorted({*kinds})}


def change(path: Path, kind: str, rng: random.Random) -> None:
    place = rng.randrange(path.stat().st_size)
    if kind == "flipped":
        data = bytearray(path.read_bytes())
        data[place] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    elif kind == "cut":
        os.truncate(path, place)
    else:
        path.unlink()
