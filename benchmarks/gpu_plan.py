"""How large everything is that gpu.py runs, and what it has to say."""

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from openai_kv.model_runner.attention.trial import Shape

BLOCK_SIZES = (1, 7, 16, 64, 256)
HEAD_DIMS = (80, 128, 256)  # with the usual block size: each pair is compiled anew, which takes seconds


@dataclass(frozen=True, slots=True)
class Plan:
    """How large everything is. `peer_blocks` of K and V for transformers; None: as many as it wants."""

    device: torch.device
    checked: str = "135m"
    shape: str = "8b"
    dtype: torch.dtype = torch.bfloat16
    shapes: tuple[Shape, ...] = (*(Shape(size) for size in BLOCK_SIZES), *(Shape(head_dim=dim) for dim in HEAD_DIMS))
    batches: tuple[int, ...] = (1, 8, 64, 256)
    context: int = 1024
    prefills: tuple[int, ...] = (512, 2048, 8192)
    steps: int = 30
    prompt: int = 128
    output: int = 128
    read_bytes: int = 2**33
    peer_blocks: int | None = None


def dry_plan() -> Plan:
    sizes: dict[str, Any] = {"shapes": (Shape(7, 16),), "batches": (1, 3), "prefills": (20,)}
    lengths: dict[str, Any] = {
        "context": 20,
        "steps": 1,
        "prompt": 8,
        "output": 3,
        "read_bytes": 2**20,
        "peer_blocks": 8,
    }
    return Plan(torch.device("cpu"), "tiny", "tiny", torch.float32, **sizes, **lengths)


@dataclass(slots=True)
class Report:
    """Results by section; a section that starts too late is left out, one that fails is named, and the rest goes on."""

    deadline: float
    sections: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, name: str, measure: Callable[[], Any]) -> None:
        if time.monotonic() > self.deadline:
            self.problems.append(f"{name}: no time left")
            return
        try:
            self.sections[name] = measure()
        except Exception as error:
            self.problems.append(f"{name}: {type(error).__name__}: {error}")
        print(f"{name}: {json.dumps(self.sections.get(name, self.problems[-1:]))}", flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
