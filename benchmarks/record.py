"""Results as JSON files, with the command and the machine that they come from."""

import json
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import torch


def save(path: Path, results: Any) -> None:
    """`results`: whatever JSON can hold."""
    record = {"command": command(sys.argv), "machine": machine(), "results": results}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def command(argv: list[str]) -> str:
    """Files and folders by their names alone: where they lie is nobody's business."""
    script, *arguments = argv
    names = [Path(each).name if "/" in each else each for each in arguments]
    return shlex.join(["python", f"benchmarks/{Path(script).name}", *names])


def machine() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    threads = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    return {
        "device": device,
        **threads,
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
