"""Names what a deterministic answer depends on."""

import hashlib
import json
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
NUM_SAMPLES = 4096


def fingerprint(model: PreTrainedModel, parts: Sequence[str]) -> str:
    """`fp_` and ten hex digits over the weights and `parts` (dtypes, backend, version).

    Of the weights: names, shapes, types and the first 16 numbers of each. That tells two models or two fine-tunes
    apart without reading gigabytes at every start.
    """
    digest = hashlib.sha256("\0".join(parts).encode())
    for name, weight in model.state_dict().items():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.flatten()[:16].float().cpu().numpy().tobytes())
    return f"fp_{digest.hexdigest()[:10]}"


def identity(model: PreTrainedModel, parts: Sequence[str]) -> str:
    """64 hex digits over all that K and V depend on but the tokens: all weights, the configuration, `parts`.

    It outlives the process and is the same on other machines. Of each weight: name, shape, type, a checksum of all
    numbers and a sample of them in their order. It tells models apart, and is no proof against forged ones.
    """
    settings = {key: value for key, value in model.config.to_dict().items() if key not in NOT_OF_THE_MODEL}
    digest = hashlib.sha256("\0".join((*parts, json.dumps(settings, sort_keys=True, default=str))).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} {_checksum(weight)}".encode())
        digest.update(_sample(weight).float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _checksum(weight: Tensor) -> int:
    """The sum of its bits, 16 or 32 of them at a time."""
    if weight.is_mkldnn or weight.dtype.itemsize not in (2, 4):
        return 0
    whole = torch.int16 if weight.dtype.itemsize == 2 else torch.int32
    return int(weight.contiguous().view(whole).sum(dtype=torch.int64))


def _sample(weight: Tensor) -> Tensor:
    flat = weight.flatten()
    return flat[:: max(1, flat.numel() // NUM_SAMPLES)]
